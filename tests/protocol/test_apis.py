# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from fluss.protocol import apis
from fluss.protocol.apis import APIS, ServerType

COORDINATOR_ONLY = {1001, 1002, 1005, 1006, 1030, 1036, 1037, 1039, 1041, 1042, 1044, *range(1046, 1059), 1060}
COORDINATOR_ONLY |= {1063, 1064, 1065, 1066}
TABLET_ONLY = {1014, 1015, 1016, 1017, 1021, 1026, 1033, 1034, 1059, 1061}
SERVER_TO_SERVER = {1013, 1018, 1019, 1020, 1022, 1027, 1028, 1029, 1031, 1043}
PRIVATE = {1030, 1042, 1052}


def test_every_key_is_known_once() -> None:
    assert set(APIS) | SERVER_TO_SERVER == set(range(1000, 1067))
    assert set(apis.SERVER_TO_SERVER_API_NAMES) == SERVER_TO_SERVER
    assert len({api.name for api in APIS.values()}) == len(APIS)
    for key, api in APIS.items():
        assert api.key == key
        assert getattr(apis, api.name) is api


def test_roles() -> None:
    both = set(APIS) - COORDINATOR_ONLY - TABLET_ONLY
    for key, api in APIS.items():
        assert (ServerType.COORDINATOR in api.roles) == (key in COORDINATOR_ONLY or key in both)
        assert (ServerType.TABLET in api.roles) == (key in TABLET_ONLY or key in both)
    assert both >= {1000, 1003, 1004, 1007, 1008, 1009, 1010, 1011, 1012, 1025, 1032, 1035, 1038, 1040, 1045, 1062}


def test_versions_and_visibility() -> None:
    newer = {api.name: api.max_version for api in APIS.values() if api.max_version > 0}
    assert newer == {"PRODUCE_LOG": 1, "PUT_KV": 3, "LOOKUP": 1, "PREFIX_LOOKUP": 1}
    assert all(api.min_version == 0 for api in APIS.values())
    assert {key for key, api in APIS.items() if not api.public} == PRIVATE


def test_messages_belong_to_their_api() -> None:
    for api in APIS.values():
        base = api.request.DESCRIPTOR.name.removesuffix("Request")
        assert api.response.DESCRIPTOR.name == f"{base}Response"
        spelled = api.name.replace("_", "").lower().replace("getmetadata", "metadata")
        assert base.lower() == spelled


def test_names_for_people() -> None:
    assert str(apis.PUT_KV) == "PUT_KV (1016)"
    assert apis.api_name(1016) == "PUT_KV"
    assert apis.api_name(1013) == "UPDATE_METADATA"
    assert apis.api_name(18) == "UNKNOWN_API_18"
