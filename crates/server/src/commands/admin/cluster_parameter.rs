//! `setClusterParameter` and `getClusterParameter`.

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::change_stream::CLUSTER_PARAMETERS;
use sheaf_front::audit::noted::{note, room_of};

use crate::args::Args;
use crate::command::*;
use crate::commands::admin::audit_config;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::op::Operation;
use crate::reply::Reply;
use parameters::{AUDIT_CONFIG, Parameter};

pub mod parameters;

/// `{setClusterParameter: {changeStreamOptions: {preAndPostImages: {expireAfterSeconds: 100}}}}`
pub struct SetClusterParameter<'a> {
    known: &'static Parameter,
    value: RawDoc<'a>,
}

impl<'a> Command<'a, Operation<'a>> for SetClusterParameter<'a> {
    const NAME: &'static str = "setClusterParameter";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "sets a parameter of the cluster",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::SetClusterParameter])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let parameter: RawDoc<'a> = args.own()?;
        let mut fields = parameter.iter();
        let (first, second) = (fields.next(), fields.next());
        if second.is_some() {
            bail!(Code::INVALID_OPTIONS, "setClusterParameter only supports setting exactly one parameter");
        }
        let Some(field) = first else { return unknown("") };
        let known = parameters::find(field.key())?;
        let Value::Document(value) = field.value() else {
            bail!(
                Code::BAD_VALUE,
                "Cluster parameter value must be an object, found {}",
                field.value().type_name()
            );
        };
        if let Some(dollar) = value.iter().find(|inner| inner.key().starts_with('$')) {
            bail!(
                Code::DOLLAR_PREFIXED_FIELD_NAME,
                "The dollar ($) prefixed field '{}' in '{}' is not valid for storage.",
                dollar.key(),
                field.key()
            );
        }
        (known.check)(value)?;
        Ok(SetClusterParameter { known, value })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = self.known.name;
        if name == AUDIT_CONFIG {
            return audit_config::change(op, self.value).map(|()| Reply::ok());
        }
        let before = self.known.value(&op.view()?).ok();
        room_of(op, before.as_ref().map_or(RawDoc::EMPTY, DocBuf::as_raw))?;
        let document = keep(op, Value::String(name), |time, _| {
            Ok(DocBuf::build(|out| {
                out.append("_id", name).append("clusterParameterTime", time).append_all(self.value);
            }))
        })?;
        note(op, "setClusterParameter", Code::OK, || {
            doc! { "originalParameter": before.unwrap_or_default().as_raw(), "updatedParameter": document.as_raw() }
        });
        parameters::refresh(op.node());
        Ok(Reply::ok())
    }
}

/// Puts a document among the parameters that are kept, and gives it; `make` makes it with its time, and is told what it replaces.
///
/// Errors: those of writing and of `make`.
pub fn keep(
    op: &Operation<'_>,
    id: Value<'_>,
    mut make: impl FnMut(Timestamp, Option<RawDoc<'_>>) -> Result<DocBuf>,
) -> Result<DocBuf> {
    with_writer(op, true, |w| {
        let collection = collection_for_write(op, w, CLUSTER_PARAMETERS)?;
        let key = collection.record_key(id)?;
        let old = w.read_for_update(&collection, &key)?;
        let old = old.as_ref().map(|old| RawDoc::new(old));
        let document = make(next_time(op, old.unwrap_or(RawDoc::EMPTY)), old)?;
        match old {
            Some(old) => w.update(&collection, &key, old, document.as_raw(), None)?,
            None => w.insert(&collection, document.as_raw())?,
        }
        Ok(document)
    })
}

/// The time of a change of this document, which is read for it: later than that of any change before, or others would not take it over.
pub fn next_time(op: &Operation<'_>, old: RawDoc<'_>) -> Timestamp {
    Timestamp(op.last_applied().time.max(time_of(old).0) + 1)
}

fn time_of(document: RawDoc<'_>) -> Timestamp {
    match document.get("clusterParameterTime") {
        Some(Value::Timestamp(time)) => time,
        _ => Timestamp(0),
    }
}

/// Puts a document that the config servers keep among the parameters of this shard, unless what is there is as new, and has it hold.
///
/// Errors: those of writing.
pub fn keep_newer(op: &Operation<'_>, document: RawDoc<'_>) -> Result<()> {
    let id = document.get_or_missing("_id");
    with_writer(op, true, |w| {
        let collection = collection_for_write(op, w, CLUSTER_PARAMETERS)?;
        let key = collection.record_key(id)?;
        match w.read_for_update(&collection, &key)? {
            Some(old) if time_of(RawDoc::new(&old)) >= time_of(document) => Ok(()),
            Some(old) => w.update(&collection, &key, RawDoc::new(&old), document, None),
            None => w.insert(&collection, document),
        }
    })?;
    parameters::refresh(op.node());
    Ok(())
}

pub(super) fn unknown<T>(name: &str) -> Result<T> {
    bail!(Code::NO_SUCH_KEY, "Unknown server parameter: {name}")
}

/// `{getClusterParameter: "*"}`, or one name, or an array of names.
pub struct GetClusterParameter {
    wanted: Vec<&'static Parameter>,
    /// Whether whatever there is is asked for.
    all: bool,
}

impl<'a> Command<'a, Operation<'a>> for GetClusterParameter {
    const NAME: &'static str = "getClusterParameter";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "values of parameters of the cluster",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::GetClusterParameter])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let find = |value: Value<'_>| match value {
            Value::String(name) => parameters::find(name),
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'getClusterParameter.getClusterParameter' is the wrong type '{}', expected types '[string, array]'",
                other.type_name()
            ),
        };
        let own = args.own_value();
        let all = own.as_str() == Some("*");
        let wanted = match own {
            Value::Null | Value::Undefined => return Err(args.missing(Self::NAME)),
            Value::String("*") => std::iter::once(&parameters::AUDIT).chain(&parameters::ALL).collect(),
            Value::Array(names) if names.is_empty() => {
                bail!(
                    Code::BAD_VALUE,
                    "Must supply at least one cluster server parameter name to getClusterParameter"
                )
            }
            Value::Array(names) => names.values().map(find).collect::<Result<_>>()?,
            other => vec![find(other)?],
        };
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(GetClusterParameter { wanted, all })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let view = op.view()?;
        let mut values = Vec::with_capacity(self.wanted.len());
        for parameter in self.wanted {
            if parameter.name != AUDIT_CONFIG {
                values.push(parameter.value(&view)?);
                continue;
            }
            match audit_config::parameter(op) {
                Some(value) => values.push(value),
                None if self.all => {}
                None => return unknown(AUDIT_CONFIG),
            }
        }
        Ok(Reply::ok().with_array("clusterParameters", |list| {
            for value in &values {
                list.push(value);
            }
        }))
    }
}
