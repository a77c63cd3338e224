# SPDX-License-Identifier: Apache-2.0
"""What a table is: types, schema, descriptor, paths, partitions, properties, predicates and their documents.

The modules are loaded with the first use of a name: a connection sends its first request with two of them.
"""

from fluss._lazy import lazy_names

NAMES = {
    "fluss.metadata.auto_partition": "AutoPartitionStrategy TimeFormat add_time_units parse_time_zone",
    "fluss.metadata.changes": "ChangeType MergeMode",
    "fluss.metadata.comparison": "LeafFunction",
    "fluss.metadata.descriptor": """
        DatabaseDescriptor DatabaseDescriptorBuilder TableDescriptor TableDescriptorBuilder physical_primary_key
    """,
    "fluss.metadata.documents": """
        FileSystemCredentials LakeOffsets LakeSnapshotFiles LakeTable RemoteLogManifestFile RemoteLogPointer
        RemoteLogSegment
    """,
    "fluss.metadata.info": """
        DatabaseInfo EARLIEST_OFFSET LATEST_OFFSET LakeSnapshot OffsetSpec TableInfo datetime_from_text epoch_millis
    """,
    "fluss.metadata.partition": """
        HISTORICAL_PARTITION PARTITION_KEY_TYPES PartitionInfo PartitionSpec format_partition_value
        parse_partition_value partition_name qualified_partition_name split_partition_name validate_partition_value
    """,
    "fluss.metadata.path": """
        COORDINATOR_SERVER ServerNode TABLET_SERVER TableBucket TablePath table_path_of
        validate_database_name validate_table_name
    """,
    "fluss.metadata.predicate": "ColumnRef Compound CompoundFunction Leaf Like Not Predicate col",
    "fluss.metadata.properties": "TABLE_PROPERTIES TableConfig TableProperty",
    "fluss.metadata.pushdown": "key_values matching_partitions server_filter",
    "fluss.metadata.schema": "AggFunction Column Schema SchemaBuilder statistics_columns",
    "fluss.metadata.types": """
        ArrayType BigIntType BinaryType BooleanType BytesType CharType DataField DataType DataTypes DateType
        DecimalType DoubleType FloatType IntType MapType RowType SmallIntType StringType TimeType
        TimestampLtzType TimestampType TinyIntType data_type_from_arrow data_type_from_json
    """,
    "fluss.metadata.validation": "validate_properties validate_table_descriptor",
}

__getattr__, __all__ = lazy_names(__name__, NAMES)
