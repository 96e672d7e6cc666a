"""The job vital_signs as the command line, the demo and the tests know it. Imports no Spark."""

from __future__ import annotations

from jobs.vital_signs.config import ChunksConfig, VitalSignsConfig
from keyhole.demo.described_jobs import JobDescription

JOB = JobDescription(
    name="vital_signs",
    application="vital-signs",
    shows=(
        "the states of a `transformWithState` processor: segments as a map, open chunks as a list, rates "
        "as a value, and files beside them"
    ),
    settings=VitalSignsConfig,
    source_settings=ChunksConfig,
    states=("open_chunks", "oxygen_saturation", "segments", "vitals"),
    probe=("vitals", ("patient-0", "pleth")),
    example="get vital-signs/vitals patient-0,pleth",
    path="vital-signs/vitals/patient-0,pleth",
    topic="chunks",
    partitions=1,
    light_load={"patients": 5},
    files="FILES",
    # For the files of the closed blobs, too.
    claim="10Gi",
    source_needs=("heartpy",),
)
