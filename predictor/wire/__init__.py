"""The only place where protobuf messages meet the dataclasses; server and client share it."""
