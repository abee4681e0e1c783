//! The parameters of the cluster: what each may be, and what it is where nobody has set it.

use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::change_stream::{CLUSTER_PARAMETERS, OPTIONS_PARAMETER};
use sheaf_front::audit::AuditConfig;
use sheaf_storage::View;

use crate::args::{Args, NonNegative};
use crate::node::Node;
use crate::query_settings;

/// A parameter of the cluster.
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it is where nobody has set it.
    default: fn() -> DocBuf,
    /// Checks a wish.
    pub check: fn(RawDoc<'_>) -> Result<()>,
}

/// What the audit log writes down, which has commands of its own, too.
pub const AUDIT_CONFIG: &str = "auditConfig";

/// How long reads may take that do not say it themselves.
const MAX_TIME: &str = "defaultMaxTimeMS";

/// What servers with an audit log have besides [`ALL`].
pub static AUDIT: Parameter = Parameter { name: AUDIT_CONFIG, default: DocBuf::new, check: check_audit };

/// The parameters that clients see, in the order of their names.
pub static ALL: [Parameter; 3] = [
    Parameter {
        name: OPTIONS_PARAMETER,
        default: || doc! { "preAndPostImages": { "expireAfterSeconds": "off" } },
        check: check_change_streams,
    },
    Parameter { name: MAX_TIME, default: || doc! { "readOperations": 0i64 }, check: check_max_time },
    Parameter {
        name: "fleDisableSubstringPreviewParameterLimits",
        default: || doc! { "shouldDisable": false },
        check: check_substring_limits,
    },
];

/// Of MongoDB's service for many tenants, where it cannot be had outside; wishes are checked all the same.
static HIDDEN: Parameter =
    Parameter { name: "changeStreams", default: DocBuf::new, check: check_serverless_change_streams };

/// The parameter of this name.
///
/// Errors: `NoSuchKey`.
pub fn find(name: &str) -> Result<&'static Parameter> {
    match ALL.iter().chain([&AUDIT, &HIDDEN]).find(|parameter| parameter.name == name) {
        Some(parameter) => Ok(parameter),
        None => super::unknown(name),
    }
}

impl Parameter {
    /// The document that clients see: what was set, or the default.
    pub fn value(&self, view: &View) -> Result<DocBuf> {
        if let Some(kept) = kept(view, self.name)? {
            return Ok(kept);
        }
        Ok(DocBuf::build(|out| {
            out.append("_id", self.name).append("clusterParameterTime", Timestamp(0));
            out.append_all((self.default)().as_raw());
        }))
    }
}

/// The document that is kept of a parameter.
pub fn kept(view: &View, name: &str) -> Result<Option<DocBuf>> {
    let Some(collection) = view.collection(CLUSTER_PARAMETERS) else { return Ok(None) };
    let found = view.get(collection, &collection.record_key(Value::String(name))?)?;
    Ok(found.map(|found| DocBuf::from(found.as_raw())))
}

/// Makes what is kept hold on this node. What other members have set arrives with the log, so it is asked for again and
/// again; what cannot be read stays as it was.
pub fn refresh(node: &Node) {
    let read = || -> Result<u64> {
        let kept = kept(&node.engine().view()?, MAX_TIME)?;
        let limit = kept.and_then(|kept| kept.as_raw().get("readOperations")?.as_exact_i64());
        Ok(limit.unwrap_or(0).max(0) as u64)
    };
    if let Ok(limit) = read() {
        node.read_time_ms.store(limit, Ordering::Relaxed);
    }
    // What cannot be read now is read the next time.
    let settings = || Ok(kept(&node.engine().view()?, query_settings::PARAMETER)?.unwrap_or_default());
    if let (Ok(true), Ok(view)) = (node.query_settings.refresh(settings), node.engine().view()) {
        // They were chosen among the indexes that the settings before allowed.
        view.plans().forget_all();
    }
    if let Some(audit) = node.front().audit.as_ref().filter(|audit| audit.runtime) {
        audit.take_over(|| kept(&node.engine().view()?, AUDIT_CONFIG));
    }
}

/// Unknown fields of a parameter are a bad value, as any other.
fn known_only(args: &Args<'_>) -> Result<()> {
    args.finish().map_err(|error| Error::new(Code::BAD_VALUE, error.message().to_owned()))
}

fn check_audit(value: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part(AUDIT_CONFIG, value)?;
    let (filter, successes) = (args.required("filter")?, args.required("auditAuthorizationSuccess")?);
    known_only(&args)?;
    AuditConfig::new(filter, successes, Timestamp(0)).map(drop)
}

fn check_max_time(value: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part(MAX_TIME, value)?;
    args.optional::<NonNegative>("readOperations")?;
    known_only(&args)
}

fn check_substring_limits(value: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part("fleDisableSubstringPreviewParameterLimits", value)?;
    args.optional::<bool>("shouldDisable")?;
    known_only(&args)
}

fn check_serverless_change_streams(value: RawDoc<'_>) -> Result<()> {
    match value.get_or_missing("expireAfterSeconds").as_exact_i64() {
        Some(seconds) if seconds > 0 => super::unknown(HIDDEN.name),
        _ => bail!(Code::BAD_VALUE, "Expected a positive integer for 'expireAfterSeconds' parameter"),
    }
}

fn check_change_streams(value: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part(OPTIONS_PARAMETER, value)?;
    let images = args.value("preAndPostImages");
    known_only(&args)?;
    let Value::Document(images) = images else {
        bail!(Code::BAD_VALUE, "Expected a 'preAndPostImages' object");
    };
    let mut args = Args::of_part("changeStreamOptions.preAndPostImages", images)?;
    let seconds = args.value("expireAfterSeconds");
    known_only(&args)?;
    match seconds {
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
