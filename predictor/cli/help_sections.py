"""Help of a command with many flags: in sections, by the panel that each flag names."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class SectionedCommand(TyperCommand):
    """A command whose help lists arguments, its own options, then one section a panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the sections; called by click for `--help`."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                # Typer adds the type's name, which says nothing beside a metavar.
                sections["Arguments"].append((record[0].removesuffix(" <str>"), record[1]))
            else:
                sections.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
