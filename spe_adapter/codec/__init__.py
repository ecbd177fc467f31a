"""Record batches to Arrow and back, vectorised.

`decode` turns what a fetch returned into Arrow record batches, `encode` turns Arrow record batches into Kafka's
RecordBatch v2, `partitioner` picks a record's partition as Kafka's default partitioner does, `compression` unpacks
Kafka's codecs.

What always holds in here: bytes that lie raise logstore.errors.CorruptBatch, never anything else, and no compiled loop
reads or writes outside its arrays. It knows numpy, numba, Arrow and `logstore.format`; nothing of Spark or sockets.
"""
