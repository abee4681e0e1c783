//! `collMod` of what the buckets of a sharded time-series collection span. Measurements are sent to shards by the begin of the bucket that they
//! would open, so that routers have to know it too.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `changing` | all shards that have something of the collection change it |
//! | `entering` | the directory has it, for routers |
//!
//! In between a shard may be sent a measurement that is another one's by its own spans: it says so, and the router asks the directory until that
//! has changed.

use sheaf_bson::DocBuf;
use sheaf_bson::{RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Interrupt;
use sheaf_timeseries::{ENTRY_FIELD, TimeseriesOptions};

use super::chunks::COLLECTIONS;
use super::ddl::{DDL, Phase, name_of, text, with};
use super::drop::concerned;
use super::{Conductor, db_of, uuid_value};
use crate::args::Args;
use crate::commands::timeseries::PLACE;
use crate::sharding::participants::name;

impl Conductor {
    /// `{collMod: "garden.system.buckets.weather", timeseries: {granularity: "hours"}}`.
    ///
    /// Errors: `NamespaceNotSharded`; `InvalidOptions`, for shorter spans; others of the argument.
    pub fn change_spans(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = args.own_value().as_str().unwrap_or_default();
        let spec: RawDoc<'_> = args.required("timeseries")?;
        args.finish()?;
        let turn = self.turn(db_of(namespace), go_on)?;
        let entry = self.entry(namespace)?;
        let known = match &entry {
            Some(entry) => TimeseriesOptions::of_entry(entry.document.as_raw())?,
            None => None,
        };
        let (Some(entry), Some(known)) = (entry, known) else {
            bail!(Code::NAMESPACE_NOT_SHARDED, "Collection {namespace} is not sharded");
        };
        let next = known.changed(spec, PLACE)?;
        if next == known {
            return Ok(doc! {});
        }
        let primary = self.primary_shard(db_of(namespace))?;
        let begin = doc! {
            "_id": namespace, "op": "collMod", "phase": "changing", "uuid": uuid_value(&entry.uuid),
            "primary": &primary, "before": { "timeseries": &known.to_doc() },
            "timeseries": &next.to_doc()
        };
        self.perform(&turn, begin, go_on)
    }
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let namespace = name_of(at);
    if text(at, "phase") == "changing" {
        for shard in concerned(conductor, at)? {
            let step = conductor.step()?;
            let command = doc! {
                (name::SET_SPANS): namespace, "step": step, "uuid": at.get_or_missing("uuid"),
                "before": at.get_or_missing("before"), "timeseries": at.get_or_missing("timeseries")
            };
            conductor.tell(&shard, &command, go_on)?;
        }
        return Ok(Phase::Reached(with(at, &[("phase", "entering".into())])));
    }
    conductor.change(go_on, |change| {
        if let Some(entry) = change.get(COLLECTIONS, Value::String(namespace))? {
            let changes = [(ENTRY_FIELD, at.get_or_missing("timeseries"))];
            change.put(COLLECTIONS, with(entry.as_raw(), &changes).as_raw())?;
        }
        change.remove(DDL, Value::String(namespace)).map(|_| ())
    })?;
    Ok(Phase::Over(doc! {}))
}
