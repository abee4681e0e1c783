//! The fields that every command may have.

/// Whether dispatch takes this field, so that no handler sees it.
pub fn is_generic(name: &[u8]) -> bool {
    match name {
        b"lsid"
        | b"txnNumber"
        | b"autocommit"
        | b"startTransaction"
        | b"readConcern"
        | b"writeConcern"
        | b"maxTimeMS"
        | b"apiVersion"
        | b"apiStrict"
        | b"apiDeprecationErrors"
        | b"comment" => true,
        // Internal to clusters; drivers never send them, and a single node has no use for them.
        b"stmtId" => false,
        b"maxTimeMSOpOnly"
        | b"clientOperationKey"
        | b"txnRetryCounter"
        | b"shardVersion"
        | b"databaseVersion"
        | b"retryOf"
        | b"routersOwn"
        | b"retryAttempt"
        | b"coordinator"
        | b"tracking_info"
        | b"mayBypassWriteBlocking"
        | b"rawData" => true,
        [b'$', ..] => matches!(
            name,
            b"$db"
                | b"$readPreference"
                | b"$clusterTime"
                | b"$audit"
                | b"$client"
                | b"$configServerState"
                | b"$queryOptions"
                | b"$replData"
                | b"$oplogQueryData"
                | b"$gleStats"
                | b"$topologyTime"
                | b"$configTime"
                | b"$traceCtx"
        ),
        _ => false,
    }
}
