# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from fluss.protocol import apis
from fluss.protocol.apis import APIS

SERVER_TO_SERVER = {1013, 1018, 1019, 1020, 1022, 1027, 1028, 1029, 1031, 1043}


def test_every_key_is_known_once() -> None:
    assert set(APIS) | SERVER_TO_SERVER == set(range(1000, 1067))
    assert set(apis.SERVER_TO_SERVER_API_NAMES) == SERVER_TO_SERVER
    assert len({api.name for api in APIS.values()}) == len(APIS)
    for key, api in APIS.items():
        assert api.key == key
        assert getattr(apis, api.name) is api


def test_versions() -> None:
    newer = {api.name: api.max_version for api in APIS.values() if api.max_version > 0}
    assert newer == {"PRODUCE_LOG": 1, "PUT_KV": 3, "LOOKUP": 1, "PREFIX_LOOKUP": 1}
    assert all(api.min_version == 0 for api in APIS.values())


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
