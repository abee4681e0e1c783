//! `setClusterParameter` and `getClusterParameter`. There is one such parameter here: how long the documents
//! before changes are kept for change streams.

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::change_stream::{CLUSTER_PARAMETERS, OPTIONS_PARAMETER};

use crate::args::Args;
use crate::command::*;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::op::Operation;
use crate::reply::Reply;

/// `{setClusterParameter: {changeStreamOptions: {preAndPostImages: {expireAfterSeconds: 100}}}}`
pub struct SetClusterParameter<'a> {
    options: RawDoc<'a>,
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
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::SetClusterParameter])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Value::Document(parameter) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'setClusterParameter.setClusterParameter' is the wrong type '{}', expected type 'object'",
                args.own_value().type_name()
            );
        };
        let mut fields = parameter.iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            bail!(Code::INVALID_OPTIONS, "setClusterParameter only supports setting exactly one parameter");
        };
        match (field.key(), field.value()) {
            (OPTIONS_PARAMETER, Value::Document(options)) => {
                check(options)?;
                Ok(SetClusterParameter { options })
            }
            (OPTIONS_PARAMETER, other) => bail!(
                Code::ILLEGAL_OPERATION,
                "Cluster parameter value must be an object, found {}",
                other.type_name()
            ),
            (other, _) => unknown(other),
        }
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let time = Timestamp(op.last_applied().time + 1);
        let document = DocBuf::build(|out| {
            out.append("_id", OPTIONS_PARAMETER)
                .append("clusterParameterTime", time)
                .append_all(self.options);
        });
        with_writer(op, true, |w| {
            let collection = collection_for_write(w, CLUSTER_PARAMETERS)?;
            let key = collection.record_key(Value::String(OPTIONS_PARAMETER))?;
            match w.read_for_update(&collection, &key)? {
                Some(old) => w.update(&collection, &key, RawDoc::new(&old), document.as_raw(), None),
                None => w.insert(&collection, document.as_raw()),
            }
        })?;
        Ok(Reply::ok())
    }
}

fn unknown<T>(name: &str) -> Result<T> {
    bail!(Code::NO_SUCH_KEY, "Unknown server parameter: {name}")
}

fn check(options: RawDoc<'_>) -> Result<()> {
    if let Some(field) = options.iter().find(|field| field.key() != "preAndPostImages") {
        bail!(40415, "BSON field '{OPTIONS_PARAMETER}.{}' is an unknown field.", field.key());
    }
    let Some(images) = options.get("preAndPostImages").and_then(|images| images.as_doc()) else {
        bail!(Code::BAD_VALUE, "Expected a 'preAndPostImages' object");
    };
    if let Some(field) = images.iter().find(|field| field.key() != "expireAfterSeconds") {
        let place = format!("{OPTIONS_PARAMETER}.preAndPostImages");
        bail!(40415, "BSON field '{place}.{}' is an unknown field.", field.key());
    }
    match images.get_or_missing("expireAfterSeconds") {
        Value::String("off") => Ok(()),
        value if value.as_exact_i64().is_some_and(|seconds| seconds > 0) => Ok(()),
        Value::Missing => bail!(Code::BAD_VALUE, "Expected 'expireAfterSeconds' option"),
        value if value.is_number() => {
            bail!(Code::BAD_VALUE, "Expected a positive integer for 'expireAfterSeconds' parameter")
        }
        _ => {
            bail!(Code::BAD_VALUE, "Expected a positive integer or 'off' for 'expireAfterSeconds' parameter")
        }
    }
}

/// `{getClusterParameter: "*"}`, or one name, or an array of names.
pub struct GetClusterParameter;

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
        let name = |value: Value<'_>| match value {
            Value::String("*" | OPTIONS_PARAMETER) => Ok(()),
            Value::String(other) => unknown(other),
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'getClusterParameter.getClusterParameter' is the wrong type '{}', expected types '[string, array]'",
                other.type_name()
            ),
        };
        match args.own_value() {
            Value::Array(names) if names.is_empty() => {
                bail!(
                    Code::BAD_VALUE,
                    "Must supply at least one cluster server parameter name to getClusterParameter"
                )
            }
            Value::Array(names) => names.values().try_for_each(name)?,
            other => name(other)?,
        }
        args.ignore(&["omitInFTDC"]);
        Ok(GetClusterParameter)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let view = op.view()?;
        let collection = view.collection(CLUSTER_PARAMETERS);
        let kept = match collection {
            Some(collection) => {
                view.get(collection, &collection.record_key(Value::String(OPTIONS_PARAMETER))?)?
            }
            None => None,
        };
        let default = doc! {
            "_id": OPTIONS_PARAMETER,
            "clusterParameterTime": Timestamp(0),
            "preAndPostImages": { "expireAfterSeconds": "off" }
        };
        Ok(Reply::ok().with_array("clusterParameters", |list| {
            list.push(kept.as_ref().map_or(default.as_raw(), |kept| kept.as_raw()));
        }))
    }
}
