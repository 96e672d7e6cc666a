"""Of who is let in, and what they may do."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_ACCESS = "src/keyhole/security/authentication.py"
_POLICY = "src/keyhole/security/policy.py"
_RPC_ACCESS = "src/keyhole/rpc/authorization.py"
_WEB_TOKENS = "src/keyhole/security/web_tokens.py"

SECURITY = (
    Breakage(
        "a web page reads the HTTP port by a name of its own",
        "security",
        "services/client_proxy/http/host_names.py",
        "        if request.path not in _OPEN and not all(",
        "        if not request.path and not all(",
        ("test_http_caching.py::test_a_page_that_calls_the_proxy_by_a_name_of_its_own_is_refused",),
    ),
    Breakage(
        "who may read a key is told where the servers are",
        "security",
        "services/client_proxy/forwarding/explained_reads.py",
        "        return response if addresses else self._by_name(response)\n",
        "        return response\n",
        ("test_access.py::test_who_reads_is_told_how_a_key_is_read_without_where_the_servers_are",),
    ),
    Breakage(
        "who may not read a state is told its schema with the routes",
        "security",
        _RPC_ACCESS,
        "    for verb in (Verb.DIRECT, Verb.READ):\n",
        "    for verb in (Verb.DIRECT,):\n",
        (
            "test_access.py::test_whoever_asks_the_servers_itself_needs_a_verb_and_what_these_ask_for_and_else_reads_by_the_proxy",
        ),
    ),
    Breakage(
        "a shared cache keeps what a caller with a token was answered",
        "security",
        "services/client_proxy/http/caching.py",
        'return f"private, {kept}" if private else kept',
        "return kept",
        ("test_http_caching.py::test_where_callers_are_told_apart_only_their_own_caches_keep_what_they_were_answered",),
    ),
    Breakage(
        "a token that has expired is still good",
        "security",
        _ACCESS,
        "        if identity.expires is not None and time.time() >= identity.expires:\n",
        "        if identity.expires is not None and time.time() < 0:\n",
        ("test_security.py::test_a_token_that_has_expired_is_refused_also_where_it_was_known_before",),
    ),
    Breakage(
        "a token that was taken out of the file is remembered",
        "security",
        _ACCESS,
        "        if known is None or known[0] != version:\n            identity",
        "        if known is None:\n            identity",
        (
            "test_access.py::test_a_token_that_is_taken_out_of_the_file_ends_its_streams_and_a_new_policy_counts_for_open_ones",
        ),
    ),
    Breakage(
        "an entry of the policy for one state is taken for all of the application",
        "security",
        _POLICY,
        "fnmatchcase(application, of_application) and fnmatchcase(state, of_state)\n",
        "fnmatchcase(application, of_application)\n",
        ("test_policy.py",),
    ),
    Breakage(
        "who is of the platform may write states",
        "security",
        _POLICY,
        "        if self.platform and verb is not Verb.WRITE:\n            return True\n"
        "        return any(verb in entry.verbs and entry.covers",
        "        if self.platform:\n            return True\n        return any(verb in entry.verbs and entry.covers",
        ("test_policy.py",),
    ),
    Breakage(
        "a job writes the states of another application",
        "security",
        _RPC_ACCESS,
        "def _writes(caller: Caller, request: Any) -> None:\n"
        '    caller.check(Verb.WRITE, request.run.application, "*")\n',
        "def _writes(caller: Caller, request: Any) -> None:\n    caller.check_infrastructure()\n",
        ("test_access.py::test_only_the_application_may_write_and_only_the_platform_may_ask_who_owns_what",),
    ),
    Breakage(
        "a method that nobody has thought about is open to all who are known",
        "security",
        _RPC_ACCESS,
        "_anybody_known if method.startswith(_REFLECTION) else _operates)\n",
        "_anybody_known)\n",
        ("test_security.py::test_a_method_that_nobody_has_thought_about_is_for_administrators_and_the_platform",),
    ),
    Breakage(
        "frames of lookups are not asked whose they are",
        "security",
        "services/client_proxy/grpc/query_servicer.py",
        "        current().check(Verb.READ, request.state.application, request.state.state)\n",
        "        current()\n",
        ("test_access.py::test_a_reader_reads_what_it_may_and_nothing_else",),
    ),
    Breakage(
        "a JWT that was made for somebody else is good",
        "security",
        _WEB_TOKENS,
        "            audience=self._audience,\n",
        '            audience=jwt.decode(token, options={"verify_signature": False}).get("aud"),\n',
        ("test_access.py::test_who_shows_nothing_or_something_that_is_not_valid_is_refused_in_the_same_words",),
    ),
    Breakage(
        "a port that wants client certificates takes who shows none",
        "security",
        "src/keyhole/rpc/tls.py",
        "(configuration(), configuration, require_client_certificate)\n",
        "(configuration(), configuration, False)\n",
        ("test_tls.py::test_with_an_authority_only_clients_with_a_certificate_of_it_are_let_in",),
    ),
    Breakage(
        "a server's certificate is compared with its address, not with the name that was asked for",
        "security",
        "src/keyhole/rpc/tls.py",
        '    return (("grpc.ssl_target_name_override", name),) if name else ()\n',
        "    return ()\n",
        ("test_tls.py::test_a_server_that_is_found_by_its_address_is_known_by_the_name_that_is_asked_for",),
    ),
    Breakage(
        "a port listens in plaintext where nobody has chosen that",
        "security",
        "src/keyhole/security/guard.py",
        ' and settings.plaintext != "allow" and not is_loopback(host):\n',
        ' and settings.plaintext == "refuse" and not is_loopback(host):\n',
        ("test_tls.py::test_plaintext_must_be_chosen_where_others_than_this_machine_can_connect",),
    ),
    Breakage(
        "a token is sent in the clear to another machine",
        "security",
        "src/keyhole/security/credentials.py",
        " and not is_loopback(host_of(target)):\n",
        " and is_loopback(host_of(target)):\n",
        ("test_access.py::test_a_token_is_not_sent_in_the_clear_beyond_this_machine",),
    ),
    Breakage(
        "a server takes any number of scans, each of which keeps a snapshot",
        "security",
        "services/state_server/read/scans.py",
        "        if self._open >= self._limits.most:\n",
        "        if self._open < 0:\n",
        ("test_scans.py::test_beyond_so_many_scans_another_one_is_refused_until_one_has_ended",),
    ),
    Breakage(
        "one caller may have all the keys under way that there may be",
        "security",
        "src/keyhole/rpc/read_admission.py",
        "        if taken.keys and taken.keys + keys > taken.most_keys:\n",
        "        if taken.keys and taken.keys + keys > self._all.most_keys:\n",
        ("test_limited_lookups.py::test_one_caller_floods_a_proxy_and_another_one_is_answered",),
    ),
    Breakage(
        "frames whose callers have given up are looked up all the same",
        "security",
        "src/keyhole/rpc/read_admission.py",
        "            if timeout_ms and late_ms >= timeout_ms:\n",
        "            if timeout_ms and late_ms < 0:\n",
        ("test_limited_lookups.py::test_a_frame_that_has_waited_for_longer_than_its_timeout_is_dropped_unread",),
    ),
    Breakage(
        "an address is left in the facts of an error that is explained",
        "security",
        "services/client_proxy/forwarding/explained_reads.py",
        "in list(error.facts.items()):\n                error.facts[fact] = named(text)\n",
        "in list(error.facts.items()):\n                error.facts[fact] = text\n",
        ("test_explaining.py",),
    ),
)
