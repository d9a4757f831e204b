"""Log lines as JSON: one object a line on standard error, for machines to collect."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

EVENTS = logging.getLogger("perfcast.serve")
ACCESS = logging.getLogger("perfcast.access")


class JsonFormatter(logging.Formatter):
    """A record's time, level, message and its `fields` mapping as one JSON object, a traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(access_log: bool) -> None:
    """Sends this package's records to standard error as JSON; other libraries' warnings too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    EVENTS.setLevel(logging.INFO)
    ACCESS.setLevel(logging.INFO if access_log else logging.CRITICAL)
