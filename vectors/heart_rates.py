"""Regenerates vectors/heart_rates.json: what HeartPy itself says of its recordings, whole and minute by minute.

HeartPy imports a module that setuptools has given up, so it runs beside the project, in an environment of its own:

    uv run --no-project --python 3.11 --with heartpy==1.2.7 --with 'setuptools<81' python vectors/heart_rates.py
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

FILE = Path(__file__).resolve().parent / "heart_rates.json"
PIECE_SECONDS = 60


def main() -> None:
    """Overwrites the file."""
    warnings.simplefilter("ignore")  # of HeartPy's own code
    import heartpy  # type: ignore[import-not-found]  # see above

    found = []
    for number, name in enumerate(("data.csv", "data2.csv", "data3.csv")):
        counts, times = heartpy.load_exampledata(number)
        rate_hz = 100.0
        if name == "data2.csv":
            rate_hz = heartpy.get_samplerate_mstimer(times)
        if name == "data3.csv":
            rate_hz = heartpy.get_samplerate_datetime(times, timeformat="%Y-%m-%d %H:%M:%S.%f")
        seconds = int(len(counts) / rate_hz)
        minutes = [(begin, begin + PIECE_SECONDS) for begin in range(0, seconds - PIECE_SECONDS + 1, PIECE_SECONDS)]
        for begin, end in [(0, seconds), *minutes]:
            piece = counts[round(begin * rate_hz) : round(end * rate_hz)]
            working, measures = heartpy.process(piece, rate_hz)
            found.append(
                {
                    "recording": name,
                    "begin_seconds": begin,
                    "end_seconds": end,
                    "heart_rate": round(float(measures["bpm"]), 3),
                    "breathing_rate": round(float(measures["breathingrate"]) * 60, 3),
                    "beats": len(working["peaklist"]),
                    "beats_rejected": len(working["removed_beats"]),
                }
            )
    FILE.write_text("[\n" + ",\n".join(f"  {json.dumps(piece)}" for piece in found) + "\n]\n")


if __name__ == "__main__":
    main()
