//! `$listClusterCatalog`: what the primary shards of databases have, with what the directory says of it.

use sheaf_aggregate::Namespace;
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_rows::Cx;

use crate::stats::{Source, of_admin};
use crate::target::Target;

/// Megabytes of a chunk where nobody has said otherwise.
const CHUNK_MEGABYTES: i64 = 128;

impl Source<'_> {
    /// One document for each collection and view of a database; of every one, on `admin`.
    ///
    /// Errors: those of the shards and of the config servers.
    pub fn catalog(&self, namespace: &Namespace, spec: RawDoc<'_>, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
        let interrupt = cx.interrupt();
        let go_on = || interrupt();
        let directory = &self.router.directory;
        let own = &*namespace.database;
        let names: Vec<String> = match own {
            "admin" | "config" => Vec::new(),
            own => vec![own.to_owned()],
        };
        let names = match own {
            "admin" => {
                let found = directory.find("databases", &doc! {}, &go_on)?;
                let name = |row: &DocBuf| row.as_raw().get("_id")?.as_str().map(str::to_owned);
                found.iter().filter_map(name).collect()
            }
            _ => names,
        };
        let mut listed = Vec::new();
        let command = of_admin(doc! { "$listClusterCatalog": spec });
        if matches!(own, "admin" | "config") {
            let config = Target::Config(directory.config().clone()).into();
            let found = self.ask(config, own, &command, cx)?;
            listed.extend(
                found.into_iter().filter(|entry| matches!(text(entry.as_raw(), "db"), "admin" | "config")),
            );
        }
        for name in &names {
            let Some(shard) = directory.database(name, &go_on)? else { continue };
            listed.extend(self.ask(Target::Shard(shard).into(), name, &command, cx)?);
        }
        let tracked = directory.find("collections", &doc! {}, &go_on)?;
        let size = directory.find("settings", &doc! { "_id": "chunksize" }, &go_on)?;
        let size = size.first().and_then(|size| size.as_raw().get("value")?.as_exact_i64());
        let mut all = Vec::with_capacity(listed.len());
        for entry in listed {
            let ns = text(entry.as_raw(), "ns");
            match tracked.iter().find(|row| text(row.as_raw(), "_id") == ns) {
                None => all.push(entry),
                Some(row) => {
                    let mut believed = directory.collection(ns, &go_on)?;
                    if believed.sharded.is_none() {
                        // Nobody has asked this router about it since it has become one that the directory has.
                        directory.stale(&believed);
                        believed = directory.collection(ns, &go_on)?;
                    }
                    let owners = believed.sharded.iter().flat_map(|sharded| sharded.table.shards());
                    let owners: Vec<&str> = owners.map(|shard| shard.as_str()).collect();
                    let chunk = size.unwrap_or(CHUNK_MEGABYTES);
                    all.push(with_directory(entry.as_raw(), row.as_raw(), &owners, spec, chunk));
                }
            }
        }
        Ok(all)
    }
}

/// An entry with what stands in the directory.
fn with_directory(
    entry: RawDoc<'_>,
    row: RawDoc<'_>,
    owners: &[&str],
    spec: RawDoc<'_>,
    chunk: i64,
) -> DocBuf {
    let flag = |of: RawDoc<'_>, name: &str| of.get(name).is_some_and(|flag| flag.truthy());
    let is_sharded = !flag(row, "unsplittable");
    DocBuf::build(|out| {
        for field in entry.iter().filter(|field| !matches!(field.key(), "sharded" | "shards")) {
            out.append_element(field);
        }
        out.append("sharded", is_sharded);
        if is_sharded {
            out.append("shardKey", row.get_or_missing("key"));
        }
        if flag(spec, "shards") {
            let mut list = out.array("shards");
            owners.iter().for_each(|shard| _ = list.push(*shard));
        }
        if is_sharded && flag(spec, "balancingConfiguration") {
            let balances = !flag(row, "noBalance");
            let moves = row.get("permitMigrations").is_none_or(|permits| permits.truthy());
            out.append("balancingEnabled", balances && moves);
            let mut reason = out.document("balancingEnabledReason");
            reason.append("enableBalancing", balances).append("allowMigrations", moves);
            drop(reason);
            let merges = row.get("enableAutoMerge").is_none_or(|merges| merges.truthy());
            out.append("autoMergingEnabled", merges);
            let own = row.get("maxChunkSizeBytes").and_then(|bytes| bytes.as_exact_i64());
            out.append("chunkSize", own.map_or(chunk, |bytes| bytes >> 20) as i32);
        }
    })
}

fn text<'d>(document: RawDoc<'d>, name: &str) -> &'d str {
    match document.get(name) {
        Some(Value::String(text)) => text,
        _ => "",
    }
}
