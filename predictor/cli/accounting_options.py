"""Flags about place and price: where a job runs, what an hour costs. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from predictor.hardware.accounting import Accounting
    from predictor.hardware.sites import Site
    from predictor.request import PredictionRequest

_PANEL = "Place and price"

SiteOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="NAME|FILE|G",
        help="Country, region (gcp:europe-west3), TOML file, or g CO2e per kWh.",
        rich_help_panel=_PANEL,
    ),
]
Pue: TypeAlias = Annotated[
    float | None,
    typer.Option("--pue", metavar="X", help="Of the building; unknown if absent.", rich_help_panel=_PANEL),
]
CarbonYear: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--carbon-year", metavar="YEAR", help="Of the intensity; default: the latest.", rich_help_panel=_PANEL
    ),
]
Price: TypeAlias = Annotated[
    float | None,
    typer.Option("--price-per-hour", metavar="USD", help="Of one device.", rich_help_panel=_PANEL),
]
Instance: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--instance", metavar="NAME", help="Cloud instance, e.g. aws:p4d.24xlarge.", rich_help_panel=_PANEL
    ),
]
Spot: TypeAlias = Annotated[bool, typer.Option("--spot", help="Its spot price.", rich_help_panel=_PANEL)]
Embodied: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--embodied-kg",
        metavar="KG",
        help="kg CO2e of making one device; spread over 4 years.",
        rich_help_panel=_PANEL,
    ),
]


Marginal: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--marginal", help="Marginal instead of average intensity, where known.", rich_help_panel=_PANEL
    ),
]
Trace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE.csv|seed:N",
        help="g CO2e per kWh hour by hour; seed:N makes one up around the site's mean.",
        rich_help_panel=_PANEL,
    ),
]
StartHour: TypeAlias = Annotated[
    float,
    typer.Option("--start-hour", metavar="H", help="Of the trace.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True, slots=True)
class AccountingFlags:
    """Where the job runs and at what price."""

    site: SiteOption = None
    pue: Pue = None
    carbon_year: CarbonYear = None
    price_per_hour: Price = None
    instance: Instance = None
    spot: Spot = False
    embodied_kg: Embodied = None
    marginal: Marginal = False
    trace: Trace = None
    start_hour: StartHour = 0.0

    @property
    def is_given(self) -> bool:
        """Whether any of them says something."""
        return self != AccountingFlags()

    def accounting(self) -> Accounting | None:
        """What they spell; None without any. Raises PerfcastError on values."""
        if not self.is_given:
            return None
        from predictor.hardware.accounting import Accounting

        kind = "marginal" if self.marginal else "average"
        site = _site(self.site)
        return Accounting(
            site=site if self.trace is None else _traced(site, self.trace, self.carbon_year, kind),
            year=self.carbon_year,
            kind=kind,
            start_hour=self.start_hour,
            pue=self.pue,
            usd_per_device_hour=self.price_per_hour,
            instance=self.instance,
            spot=self.spot,
            embodied_kg_per_device=self.embodied_kg,
        )

    def added_to(self, request: PredictionRequest) -> PredictionRequest:
        """The request with the accounting."""
        accounting = self.accounting()
        return request if accounting is None else replace(request, accounting=accounting)


def _site(text: str | None) -> str | Site | None:
    if text is None:
        return None
    from predictor.hardware.sites import load_site_file, site_of_intensity

    if text.endswith(".toml"):
        return load_site_file(text)
    try:
        return site_of_intensity(float(text), f"{text} g/kWh")
    except ValueError:
        return text


def _traced(site: str | Site | None, text: str, year: int | None, kind: str) -> Site:
    """The site (or a nameless one) with a trace from a file, or a made-up one around its intensity."""
    from predictor.errors import InvalidRequest
    from predictor.hardware.carbon_trace import load_trace, seeded_trace
    from predictor.hardware.sites import Site, find_site

    place = find_site(site) if isinstance(site, str) else site or Site("given", "given")
    name, colon, seed = text.partition(":")
    if name != "seed" or not colon:
        return replace(place, trace=load_trace(text))
    known = place.intensity(year, kind)
    if known is None or not seed.isdigit():
        raise InvalidRequest(
            f"--trace {text}: a made-up trace needs a whole number and a --site of known {kind} intensity",
            field="site.trace",
        )
    return replace(place, trace=seeded_trace(known.g_per_kwh.value, int(seed)))
