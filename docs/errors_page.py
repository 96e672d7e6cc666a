"""docs/errors.md, from src/keyhole/errors and what is to be done about each error, which is here.

`uv run python docs/generate.py` writes it; tests/meta/test_errors.py checks that it is current and has every class.
"""

import inspect

from keyhole import errors
from keyhole.errors import KeyholeError
from keyhole.rpc.http.problems import http_status

_INTRODUCTION = """# Errors

Reference, for all who get one: what each error means, and what to do. The page is made from `src/keyhole/errors` by
`uv run python docs/generate.py`: don't edit it.

The message of an error says what is wrong and what to do; `facts` hold the same for a program. All are subclasses of
`keyhole.errors.KeyholeError`. Programs in other languages switch on the reason. Over gRPC it is in the trailing
metadata ([clients](clients-reference.md#errors)), over HTTP in the problem's `reason`
([HTTP](clients-reference.md#over-http)).

**Again** says whether the same request may succeed later (`retryable`): wait a little, and try until your own deadline.
Python's clients do that by themselves where a connection breaks or a proxy stops.
[Errors and timeouts](reads.md#errors-and-timeouts) shows how a service catches them.
"""

_BRANCHES = {
    errors.RequestError: "The request is wrong",
    errors.ConflictError: "The application contradicts what is stored",
    errors.UnavailableError: "Not now",
    errors.CommitError: "Between the coordinator and the servers",
    errors.MachineError: "The machine lacks something",
    errors.InternalError: "A bug",
}

TO_DO: dict[type[KeyholeError], str] = {
    errors.UnknownApplication: "Look for the name among those that the message has, or `keyhole states`. A job has its "
    "states from its first batch on.",
    errors.UnknownState: "Look for the name among those that the message has.",
    errors.KeyMismatch: "Give one value for each key column, of its type: `keyhole describe APP/STATE` shows them.",
    errors.NullKey: "Leave out rows and keys with a null, or give it a value of your own.",
    errors.KeyTooLong: "Use a shorter key, or a hash of it.",
    errors.ValueMismatch: "Make the value, or the class that it is read as, fit the fields in the message.",
    errors.DuplicateKey: "Give the state `order_by=`, a reducer, or rows of which each key has one "
    "([kinds](kinds.md)).",
    errors.MalformedRequest: "Follow what the message says of the parameter or the body; a client of your own follows "
    "[clients](clients-reference.md).",
    errors.TooLarge: "Ask for fewer keys at once, or store smaller values "
    "([large values](clients-reference.md#large-values)); of a scan ask for less ([caps](reads-reference.md#caps)). "
    "The facts have the limit.",
    errors.EpochGone: "Read a newer epoch: the fact `oldest` names the first one that is kept. Make a new snapshot, or "
    "give the state a larger `keep_epochs` ([reads](reads-reference.md#of-one-epoch)).",
    errors.ResumeGone: "Begin the watch without a token: its rows then are the state as it is. Keep a token no longer "
    "than the message says.",
    errors.Unsupported: "Use what the message names instead; after an upgrade of one side, upgrade the other.",
    errors.Unauthenticated: "Bring a valid token or certificate ([security](security.md)); get a new one where it has "
    "expired.",
    errors.PermissionDenied: "Ask whoever keeps the policy for the verb and the state ([security](security.md)).",
    errors.InvalidConfiguration: "Correct the setting that the message names ([configuration](configuration.md)).",
    errors.StateConflict: "Give the state another name, or end what feeds it; `--take-over` where a feed is to be "
    "replaced.",
    errors.StateChanged: "Declare the state as it was, or give it another name ([what may "
    "change](spark-reference.md#changing-the-fields-of-a-value)).",
    errors.TopicMismatch: "Give the topic the settings in the message; where it isn't Keyhole's, name the state "
    "otherwise.",
    errors.ChangelogRecreated: "Restore the topic or a [savepoint](savepoints.md), or delete the changelog topics and "
    "begin anew, as the message says.",
    errors.CheckpointMismatch: "Put the checkpoint back, or choose by `on_new_checkpoint=` what becomes of the state "
    "([arguments](spark-reference.md#the-arguments-of-queryablevalue)).",
    errors.ReplayDiffers: "Make the batch deterministic ([exactly once](spark.md)), or leave `strict` out.",
    errors.ProtocolMismatch: "Run both processes in versions that go together ([upgrade](kubernetes.md#upgrade)).",
    errors.StoreFormat: "Run the version that wrote it, or delete the directory: it is rebuilt from the changelog.",
    errors.StoreLocked: "End the other process, or give each its own directory.",
    errors.StoreFull: "Give the disk more room, or the store a higher limit, as the message says "
    "([stores](stores.md)).",
    errors.StoreConflict: "Nothing: the server restores the key group. Where it comes back, report it.",
    errors.SavepointMismatch: "Restore it where the message says that it fits, or under another application.",
    errors.SavepointDamaged: "Take another savepoint; files of one must be kept together.",
    errors.NotOwner: "Nothing: clients and proxies ask the owner.",
    errors.NotReady: "Wait: the facts say how far the restore is. A [standby](glossary.md) answers meanwhile.",
    errors.StaleDescriptor: "Describe the state again; Python's clients do.",
    errors.EpochNotReached: "Wait, or lower `min_epoch`. Where the job stands still, see [operations](operations.md).",
    errors.TooStale: "Allow an older answer, or see why copies fall behind ([operations](operations.md)).",
    errors.Unconfirmed: "Allow other copies (`stale=when_needed`), or start the job: its driver confirms the owners.",
    errors.StillRunning: "End the query first, and wait for the lease (3 s).",
    errors.NoServer: "Start a state server; the message has each address that was tried and why it failed.",
    errors.ServerLost: "Check the address and the port, and that the process runs: gRPC is at 7400, HTTP at 7402.",
    errors.Draining: "Nothing: clients go on with another process, or with the next one at this address.",
    errors.Overloaded: "Send less at once, add processes, or raise [the limit](reads-reference.md#limits-of-lookups).",
    errors.TooSlow: "Go on behind the last token. Take changes faster, watch fewer keys, or ask for the latest alone.",
    errors.KafkaUnreachable: "Check the address and [how Kafka is spoken to](configuration.md#how-kafka-is-spoken-to). "
    "Reads go on without it.",
    errors.DeadlineExceeded: "Give it more time, or see what the message says it was waiting for.",
    errors.ClientClosed: "Make a new client, and close it after the last read.",
    errors.Fenced: "End this run: a newer one has taken over. Two drivers with one query are one too many.",
    errors.EpochFailed: "Start the query again: the batch is run again and counts once. The message has the cause.",
    errors.StageLost: "Nothing: the coordinator stages again.",
    errors.OutcomeUnknown: "Nothing: the server restores, and the epoch is finished or run again.",
    errors.PortTaken: "End the other process, or choose another port; 0 takes any free one.",
    errors.JavaMissing: "Install Java 17 or later, and set `JAVA_HOME` where several are there.",
    errors.JarsUnavailable: "Let the machine reach Maven Central once, or fill the cache elsewhere and copy it.",
    errors.InternalError: "Report it, with the log of the process around it.",
}
"""By class, what a person does about it."""


def page() -> str:
    """docs/errors.md as Markdown: a table for each branch of the tree of errors."""
    parts = [_INTRODUCTION]
    for branch, title in _BRANCHES.items():
        about = " ".join((inspect.getdoc(branch) or "").split())
        parts.append(f"\n## {title}\n\n`{branch.__name__}`: {about[0].lower()}{about[1:]}\n\n")
        parts.append("| error | when | what to do | again | gRPC | HTTP |\n|---|---|---|---|---|---|\n")
        kinds = [kind for kind in errors.by_reason().values() if issubclass(kind, branch)]
        parts += [_row(kind) for kind in kinds]
    return "".join(parts)


def _row(kind: type[KeyholeError]) -> str:
    when = " ".join((inspect.getdoc(kind) or "").split())
    again = "yes" if kind.retryable else "no"
    name = f"`{kind.__name__}` {kind.reason}"
    return f"| {name} | {when} | {TO_DO[kind]} | {again} | {kind.code} | {http_status(kind(''))} |\n"
