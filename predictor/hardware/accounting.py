"""What a job is charged with: where it runs, by whose price, and what counts beside the electricity."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.checks import positive_number, real_number
from predictor.errors import InvalidRequest
from predictor.hardware.prices import find_instance
from predictor.hardware.sites import SITE_KINDS, Site, find_site

_HOURS_PER_YEAR = 8766.0


@dataclass(frozen=True, slots=True)
class Accounting:
    """Carbon and cost of a prediction; everything not given stays unknown in the answer.

    Attributes:
        site: code or name of a place, or a Site: carbon intensity, PUE, price of electricity.
        year: of the intensity; None is the latest known. kind: average or marginal.
        start_hour, hours: when the run starts in the site's trace, and how long it lasts (None: the mean of
            the whole trace).
        pue: overrides the site's.
        usd_per_device_hour: price of one device for an hour. instance: a cloud instance instead, priced as a
            whole even where it is half empty. spot: its spot price.
        embodied_kg_per_device: kg CO2e of making one device and its share of the node, spread over
            `lifetime_years`; None leaves it out.
        node: whether host, network and losses are counted (scope `node`), or the boards alone.
    """

    site: str | Site | None = None
    year: int | None = None
    kind: str = "average"
    start_hour: float = 0.0
    hours: float | None = None
    pue: float | None = None
    usd_per_device_hour: float | None = None
    instance: str | None = None
    spot: bool = False
    embodied_kg_per_device: float | None = None
    lifetime_years: float = 4.0
    node: bool = True

    def __post_init__(self) -> None:
        """Raises InvalidRequest, and UnknownName for a site or an instance that no table holds."""
        if isinstance(self.site, str):
            find_site(self.site)
        elif self.site is not None and not isinstance(self.site, Site):
            raise InvalidRequest(
                f"site is a {type(self.site).__name__}; expected a code such as 'de', or a Site", field="site"
            )
        if self.kind not in SITE_KINDS:
            raise InvalidRequest(
                f"carbon kind is {self.kind!r}; expected one of {', '.join(SITE_KINDS)}", field="kind"
            )
        if self.pue is not None:
            real_number(self.pue, "pue", "pue", "a number from 1 to 5", 1, 5)
        for name in ("usd_per_device_hour", "embodied_kg_per_device"):
            if (value := getattr(self, name)) is not None:
                real_number(value, name, name, "a number from 0 to 1e6", 0, 1e6)
        if self.instance is not None:
            if self.usd_per_device_hour is not None:
                raise InvalidRequest(
                    "give an instance or a price per device-hour, not both", field="usd_per_device_hour"
                )
            find_instance(self.instance)
        elif self.spot:
            raise InvalidRequest("a spot price needs an instance; give one", field="spot")
        real_number(self.start_hour, "start_hour", "start_hour", "hours from 0 to 1e6", 0, 1e6)
        if self.start_hour and (self.place is None or self.place.trace is None):
            raise InvalidRequest(
                "an hour to start at needs an hourly trace: a site file with `trace`, or --trace",
                field="start_hour",
            )
        if self.hours is not None:
            positive_number(self.hours, "hours", "hours", "hours above 0")
        positive_number(self.lifetime_years, "lifetime_years", "lifetime_years", "years above 0")

    @property
    def place(self) -> Site | None:
        """The site, looked up."""
        return find_site(self.site) if isinstance(self.site, str) else self.site

    @property
    def lifetime_s(self) -> float:
        """Seconds over which the making of a device is spread."""
        return self.lifetime_years * _HOURS_PER_YEAR * 3600
