"""Records whose schemas are in a schema registry: Avro and Protobuf in Confluent's wire format.

    framing.py         b"\\0", four bytes of a schema's id, the value    -> the id, and where the value begins
    schemas.py         an id                                            -> what decodes it, asked for once
    avro.py            an Avro schema                                   -> a reader of bytes, in the forms that JSON has
    protoc.py          the text of a .proto                             -> its descriptors
    protobuf.py        these                                            -> a reader of bytes, in the same forms
    allowance.py       how much memory the values of a record may take; for Protobuf, with protobuf_sizes.py
    encodings.py       these as a RecordEncoding, which feeders take
    client.py          asks the registry over HTTP

Only client.py does I/O, and protoc.py, which runs protoc. All but framing.py, schemas.py and allowance.py need the
extra `registry`.
"""
