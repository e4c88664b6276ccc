"""The wire: protobuf at the walls. `raft_pb2` and `api_pb2` are generated from `proto/`, committed,
and compared with a fresh generation by `make verify`; `codec` turns them into the core's own types.
"""
