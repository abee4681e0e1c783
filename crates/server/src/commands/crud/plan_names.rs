//! By what names the plan cache knows a query that has been answered: read anew from the command, which costs only those something who have
//! the slow log or the profiler tell of it.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_exec::database::{head_query, resolve_view};
use sheaf_exec::plan::Query;
use sheaf_front::request::PlanNames;

use super::aggregate::Aggregate;
use super::count::Count;
use super::distinct::Distinct;
use super::explain::inner;
use super::find::Find;
use super::find_and_modify::FindAndModify;
use super::pipeline::parse;
use super::told::names_of;
use crate::args::Args;
use crate::op::Operation;

/// Those of a command's query; `None` if it has none, or if its plan is not one of a collection's.
pub fn of_command(op: &Operation<'_>, command: RawDoc<'_>) -> Option<PlanNames> {
    let (namespace, query) = query_of(op, command).ok()??;
    names_of(op, &namespace, &query)
}

/// The query of a command that has one, with what it is on.
fn query_of(op: &Operation<'_>, command: RawDoc<'_>) -> Result<Option<(String, Query)>> {
    let name = command.iter().next().map_or("", |first| first.key());
    let (collection, query) = match name {
        "find" => {
            let find: Find<'_> = inner("find", command)?;
            (find.collection, find.query(op)?)
        }
        "count" => {
            let count: Count<'_> = inner("count", command)?;
            (count.collection, count.to_query(op)?)
        }
        "distinct" => {
            let distinct: Distinct<'_> = inner("distinct", command)?;
            (distinct.collection, distinct.to_query(op)?)
        }
        "findAndModify" | "findandmodify" => {
            let modify: FindAndModify<'_> = inner("findAndModify", command)?;
            let query = modify.query_of_plan(op)?;
            (modify.collection, query)
        }
        "aggregate" => return of_pipeline(op, command),
        _ => return Ok(None),
    };
    Ok(Some((op.namespace(collection), query)))
}

/// The query at the head of a pipeline, on the collection below all views.
fn of_pipeline(op: &Operation<'_>, command: RawDoc<'_>) -> Result<Option<(String, Query)>> {
    let mut args = Args::of_document("aggregate", command)?;
    let command = Aggregate::parse_as(&mut args, true)?;
    let namespace = command.namespace(op);
    let pipeline = parse(command.pipeline, &namespace, &mut command.parse_cx(op)?)?;
    if pipeline.has_own_source() {
        return Ok(None);
    }
    let view = op.engine().view()?;
    match view.collection(&namespace.to_string()).filter(|found| found.is_view()) {
        None => Ok(Some((namespace.to_string(), head_query(&pipeline).0))),
        Some(found) => {
            let (below, joined) = resolve_view(&view, found, &pipeline, op.system_variables())?;
            Ok(Some((below.to_string(), head_query(&joined).0)))
        }
    }
}
