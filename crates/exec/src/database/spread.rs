//! What a shard does not read for a router, because it has a part of it only: other collections that are sharded, and views on them.

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_storage::Collection;

use super::{Db, resolve_view};

impl Db {
    /// Checks that what a pipeline is about to read is all here.
    ///
    /// Errors: `StaleConfig` for another collection than the command's own that is sharded; `CommandOnShardedViewNotSupportedOnMongod` for
    /// a view that stands on one or reads one, with what the view is.
    pub(super) fn check_here(&self, namespace: &Namespace, collection: &Collection) -> Result<()> {
        let Some(is_spread) = &self.hooks.is_spread else { return Ok(()) };
        let view = self.view();
        if !collection.is_view() {
            let name = namespace.to_string();
            // The command has compared the version of its own.
            if self.own.as_ref() == Some(&name) || !is_spread(&view, collection)? {
                return Ok(());
            }
            let text = format!("{name} is sharded, and the router does not know it");
            let extra = DocBuf::new().with("ns", name.as_str());
            return Err(Error::new(Code::STALE_CONFIG, text).with_extra(extra.into_bytes()));
        }
        let system = self.hooks.system.clone();
        // As the view compares, whatever is asked of it.
        let mut cx = ParseCx::new().with_collator(collection.collator.clone());
        let whole = Pipeline::parse(ArrayBuf::build(|_| {}).as_raw(), namespace, &mut cx)?;
        let (on, pipeline) = resolve_view(&view, collection, &whole, system)?;
        let mut read = vec![on.clone()];
        pipeline.foreign_namespaces(&mut read);
        for other in &read {
            let Some(other) = view.collection(&other.to_string()) else { continue };
            // Views within views are told one after the other.
            if (other.is_view() && other.name() != on.collection) || is_spread(&view, other)? {
                return Err(resolved(namespace, collection, &on, &pipeline.spec()));
            }
        }
        Ok(())
    }
}

fn resolved(view: &Namespace, shown: &Collection, on: &Namespace, stages: &ArrayBuf) -> Error {
    let collation = shown.options.as_raw().get("collation");
    let simple = doc! { "locale": "simple" };
    // Measurements are compared as their buckets are.
    let simple = Some(Value::Document(simple.as_raw())).filter(|_| !shown.is_timeseries());
    let extra = DocBuf::build(|out| {
        {
            let mut resolved = out.document("resolvedView");
            resolved.append("ns", on.to_string().as_str());
            resolved.append("pipeline", Value::Array(stages.as_raw()));
            if let Some(collation) = collation.or(simple) {
                resolved.append("collation", collation);
            }
        }
        out.append("view", view.to_string().as_str());
    });
    let text = format!("{view} is a view on what is sharded: the router reads it of all shards");
    Error::new(Code::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD, text).with_extra(extra.into_bytes())
}
