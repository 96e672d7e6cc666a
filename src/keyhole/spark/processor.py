"""Makes the states of a processor queryable that was written for Spark's transformWithState.

    exposing = QueryableProcessor(Alerts(), key="sensor", expose={"last": ExposedValue("celsius double")})
    alerts = exposing.transform(readings, "sensor string, celsius double", time_mode="eventTime")

In which columns its own rows and the changes of its states leave Spark's operator stands in keyhole.spark.exposed, and
keyhole.spark.changes parts them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType, TimestampType
from pyspark.util import PythonEvalType

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind, TtlClock
from keyhole.spark.declaration.argument_types import Columns, columns
from keyhole.spark.declaration.batch_columns import check_all_columns
from keyhole.spark.declaration.given_schema import struct
from keyhole.spark.declaration.kept_names import check_names
from keyhole.spark.declaration.ttl import Ttl, ttl_of
from keyhole.spark.driver.data_frames import classic, column, quoted
from keyhole.spark.driver.processor_check import check_init
from keyhole.spark.exposed import (
    PREFIX,
    ExposedList,
    ExposedMap,
    ExposedState,
    ExposedValue,
    output_schema,
)
from keyhole.spark.worker.processor_task import Output, PandasOutput, RecordingProcessor, RecordingUdf, RowOutput
from keyhole.spark.worker.state_values import Rows
from keyhole.spark.write_path.builder import class_problems

Exposed = ExposedValue | ExposedList | ExposedMap


class QueryableProcessor:
    """A StatefulProcessor of the user's, some states of which are to be readable from outside.

    The processor stays as it is: its timers, time to live and initial state do what they do without Keyhole. What it
    changes in an exposed state leaves Spark's operator as change rows, in one data frame with its own rows. Driver
    only; Spark sends the processor to its workers, as it would anyway.

    Args:
        key: The column, or columns, that the stream is grouped by.
        expose: The states by the names under which the processor's `init` declares them, as what it declares them.
            Readers find them under these names, unless one is given another (`name`): the states of one application
            have one name each, whichever queries feed them.

    Raises:
        InvalidConfiguration: There is no key, or nothing to expose; or an argument is of another type.
    """

    def __init__(self, processor: StatefulProcessor, *, key: Columns, expose: Mapping[str, Exposed]) -> None:
        self.key = columns(key)
        self._processor = processor
        for problem in class_problems(processor=processor):
            raise InvalidConfiguration(problem)
        if not isinstance(expose, Mapping):
            raise InvalidConfiguration(
                f'expose is a {type(expose).__name__}; give it as {{"last": ExposedValue("v double")}}'
            )
        self._expose = dict(expose)
        if not all(isinstance(name, str) for name in self.key):
            raise InvalidConfiguration("key must be the name of a column, as text, or a list of names")
        if not self.key or len(set(self.key)) < len(self.key):
            raise InvalidConfiguration("key names the columns that the stream is grouped by: one at least, each once")
        _check_names([_name_of(variable, declared) for variable, declared in expose.items()])
        if not expose:
            raise InvalidConfiguration(
                'expose names no state; give it at least one, as {"last": ExposedValue("v double")}'
            )

    @functools.cached_property
    def states(self) -> tuple[ExposedState, ...]:
        """The exposed states, in the order given. Needs a Spark session, which knows how schemas are written.

        Raises:
            InvalidConfiguration: A schema is none, a ttl is wrong, two columns of a state have one name, or Spark can't
                keep a column of that name.
            ValueMismatch: A column is of a type that can't be exposed.
        """
        return tuple(self._state(name, declared) for name, declared in self._expose.items())

    @functools.cached_property
    def ttls(self) -> Mapping[str, Ttl | None]:
        """The ttl of each exposed state, that it, or else the processor, gives it; None: none.

        Runs `init` and `close` of a copy of the processor, once, as Spark does again when a query starts.

        Raises:
            InvalidConfiguration, ValueMismatch: As `states`; or `init` doesn't declare the states as they are exposed.
            Exception: What `init` raises.
        """
        in_spark = check_init(self._processor, self.states)
        return {state.name: state.ttl or in_spark[state.name] for state in self.states}

    def transform(
        self,
        data: DataFrame,
        output: StructType | str,
        *,
        output_mode: str = "update",
        time_mode: str = "none",
        initial_state: GroupedData | None = None,
    ) -> DataFrame:
        """`data.groupBy(key).transformWithState(processor, ...)`, whose rows have the changes beside them.

        Runs `init` of a copy of the processor here already: see `ttls`.

        Args:
            output: The schema of the processor's own rows.
            output_mode, time_mode, initial_state: As transformWithState takes them.

        Raises:
            InvalidConfiguration: The data lacks a key column, a name is taken, or Spark can't keep a key column of that
                name; or as `ttls`.
            ValueMismatch: As `states`. Also in the task, where the processor puts a value into an exposed state that
                Spark would store as another one, or as null: as text in the error that ends the query.
            Exception: As `ttls`.
        """
        return self._transform(data, output, output_mode, time_mode, initial_state, pandas=False)

    def transform_in_pandas(
        self,
        data: DataFrame,
        output: StructType | str,
        *,
        output_mode: str = "update",
        time_mode: str = "none",
        initial_state: GroupedData | None = None,
    ) -> DataFrame:
        """As `transform`, with `transformWithStateInPandas`: for a processor that takes and gives pandas data frames.

        Raises:
            InvalidConfiguration, ValueMismatch: As `transform`; also where a key column is of type timestamp.
        """
        return self._transform(data, output, output_mode, time_mode, initial_state, pandas=True)

    def _transform(
        self,
        data: DataFrame,
        output: StructType | str,
        output_mode: str,
        time_mode: str,
        initial_state: GroupedData | None,
        *,
        pandas: bool,
    ) -> DataFrame:
        own = struct("output", output)
        key = self._key_schema(data.schema, pandas)
        check_all_columns("the processor", data)
        taken = [name for name in (*own.names, *data.schema.names) if name.lower().startswith(PREFIX)]
        if taken:
            raise InvalidConfiguration(f"column {taken[0]!r}: names that begin with {PREFIX} are Keyhole's; rename it")
        schema = output_schema(own, key, self.states)
        form: Output = PandasOutput(own.names, schema.names) if pandas else RowOutput()
        _ = self.ttls  # the check of `init`
        udf = RecordingUdf(RecordingProcessor(self._processor, self.states, key, form), time_mode, waits=not pandas)
        return _operator(classic(data), self.key, udf, schema, (output_mode, time_mode), initial_state, pandas)

    def _key_schema(self, data: StructType, pandas: bool) -> StructType:
        missing = [name for name in self.key if data.names.count(name) != 1]
        if missing:
            raise InvalidConfiguration(
                f"key column {missing[0]!r} exists {data.names.count(missing[0])} times in the data, whose columns are "
                f"{', '.join(data.names)}",
                column=missing[0],
            )
        key = StructType([data[name] for name in self.key])
        for field in key.fields if pandas else ():
            if isinstance(field.dataType, TimestampType):
                raise InvalidConfiguration(
                    f"key column {field.name!r} is a timestamp, which pandas is given without its time zone; use "
                    "transform, or cast it",
                    column=field.name,
                )
        Rows("the grouping key", key)
        check_names("the grouping key", key)
        return key

    def _state(self, variable: str, declared: Exposed) -> ExposedState:
        name = _name_of(variable, declared)
        what = f"state {name!r}"
        match declared:
            case ExposedValue():
                state = ExposedState(name, StateKind.VALUE, struct(what, declared.schema), StructType())
            case ExposedList():
                state = ExposedState(name, StateKind.LIST, struct(what, declared.schema), StructType())
            case ExposedMap():
                state = ExposedState(name, StateKind.MAP, struct(what, declared.value), struct(what, declared.key))
            case _:
                raise InvalidConfiguration(
                    f"{what} is exposed as a {type(declared).__name__}; say ExposedValue, ExposedList or ExposedMap",
                    state=name,
                )
        # Spark finds columns by their names whatever the case.
        lowered = [part.lower() for part in (*self.key, *state.entry.names)]
        for part in state.entry.names:
            if lowered.count(part.lower()) > 1:
                raise InvalidConfiguration(
                    f"{what}: {part!r} names more than one of its columns, which are the grouping key's "
                    f"({', '.join(self.key)}), its map key's and its value's; rename the state's own",
                    state=name,
                    column=part,
                )
            if part.lower().startswith(PREFIX):
                raise InvalidConfiguration(f"{what}: names that begin with {PREFIX} are Keyhole's; rename {part!r}")
        Rows(what, state.entry)
        check_names(what, state.entry)
        return replace(state, ttl=_own_ttl(name, declared), alias_of="" if name == variable else variable)


def _name_of(variable: str, declared: Exposed) -> str:
    """What readers call it. Of what is no declaration at all something else is said later."""
    name = declared.name if isinstance(declared, Exposed) else None
    if name is not None and not (isinstance(name, str) and name):
        raise InvalidConfiguration(
            f"state {variable!r} is exposed under the name {name!r}; give it one as text, or leave name out",
            state=variable,
        )
    return variable if name is None else name


def _check_names(names: Sequence[str]) -> None:
    """Spark finds columns by their names whatever the case, and each state has one."""
    if len(set(names)) < len(names):
        raise InvalidConfiguration(
            f"two exposed states have one name: {', '.join(names)}; give one of them another, "
            'as ExposedValue("v double", name="...")'
        )
    if len({name.lower() for name in names}) < len(names):
        raise InvalidConfiguration(f"the names of two exposed states differ by case alone: {', '.join(names)}")


def _own_ttl(state: str, declared: Exposed) -> Ttl | None:
    if declared.ttl is None and declared.ttl_clock is not None:
        raise InvalidConfiguration(
            f"state {state!r}: ttl_clock is given and ttl is not; give both, or give both to queryable.exposed",
            state=state,
        )
    ttl = ttl_of(state, declared.ttl, declared.ttl_clock or TtlClock.PROCESSING_TIME)
    return None if declared.ttl is None else ttl


def _operator(
    data: ClassicDataFrame,
    key: Sequence[str],
    udf: RecordingUdf,
    schema: StructType,
    modes: tuple[str, str],
    initial_state: GroupedData | None,
    pandas: bool,
) -> DataFrame:
    """As GroupedData.transformWithState makes it (Spark 4.2), which leaves no say in the function that Spark calls.

    Changes that have not left yet could not do so otherwise: no call of the processor gives out rows at a task's end.
    """
    function = udf.transformWithStateUDF if initial_state is None else udf.transformWithStateWithInitStateUDF
    kind = _FUNCTION_TYPES[pandas, initial_state is not None]
    # Without metadata, which Spark's worker would write as JSON anew for each key; the data frame has it all the same.
    plain = StructType([StructField(field.name, field.dataType, field.nullable) for field in schema])
    made = pandas_udf(function, returnType=plain, functionType=kind)  # type: ignore[call-overload]  # kinds of its own
    grouped = data.groupBy(*map(column, key))._jgd
    session = data.sparkSession
    operator = grouped.transformWithStateInPandas if pandas else grouped.transformWithStateInPySpark
    java = operator(
        made(*(data[quoted(name)] for name in data.columns))._jc,
        session._jsparkSession.parseDataType(schema.json()),
        *modes,
        None if initial_state is None else initial_state._jgd,
        "",
    )
    return ClassicDataFrame(java, session)


_FUNCTION_TYPES = {
    (False, False): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF,
    (False, True): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_INIT_STATE_UDF,
    (True, False): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF,
    (True, True): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF,
}
"""By whether rows are pandas data frames, and whether there is an initial state."""
