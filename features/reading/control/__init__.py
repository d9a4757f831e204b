"""If, Loop, Scan and SequenceMap while a file is read: which body runs, how often, and with which types.

An If becomes its branch: the one that its condition or the caller names, else the costlier one, with a note.
Loop and Scan keep their body, typed, and how often it runs; a loop whose state changes type, or whose body
can only be typed step by step, is unrolled. SequenceMap is unrolled. Importing the
package registers the rules.
"""

from predictor.features.reading.control import choice, loops, scans
from predictor.features.reading.control.walker import CONTROL_RULES, OPENING_LIMIT, TRIP_COUNT

__all__ = ["CONTROL_RULES", "OPENING_LIMIT", "TRIP_COUNT", "choice", "loops", "scans"]
