//! `setAuditConfig` and `getAuditConfig`: what the audit log writes down, kept with the cluster's parameters.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::audit::noted::{note, room_of};
use sheaf_front::audit::{Audit, AuditConfig};

use super::cluster_parameter::parameters::{self, AUDIT_CONFIG};
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

const NEEDS: &[Privilege] = &[Privilege::on(Resource::Cluster, &[Action::AuditConfigure])];

const fn spec(help: &'static str, writes: bool) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: if writes { Access::Write } else { Access::None },
        transaction: Transaction::Refused,
        secondary: if writes { Secondary::Never } else { Secondary::Always },
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(NEEDS),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    }
}

/// The audit log that may be configured.
///
/// Errors: `AuditingNotEnabled`, `RuntimeAuditConfigurationNotEnabled`.
fn configurable<'a>(op: &Operation<'a>) -> Result<&'a Audit> {
    let Some(audit) = &op.request.front.audit else {
        bail!(Code::AUDITING_NOT_ENABLED, "Auditing is not enabled");
    };
    if !audit.runtime {
        bail!(
            Code::RUNTIME_AUDIT_CONFIGURATION_NOT_ENABLED,
            "Runtime audit configuration has not been enabled"
        );
    }
    Ok(audit)
}

/// What is kept as `getAuditConfig` shows it.
fn without_id(kept: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in kept.iter().filter(|field| field.key() != "_id") {
            out.append_element(field);
        }
    })
}

/// `{setAuditConfig: 1, filter: {...}, auditAuthorizationSuccess: bool}`.
pub struct SetAuditConfig<'a> {
    filter: RawDoc<'a>,
    authorization_success: bool,
}

impl<'a> Command<'a, Operation<'a>> for SetAuditConfig<'a> {
    const NAME: &'static str = "setAuditConfig";
    const SPEC: Spec = spec("changes what the audit log writes down", true);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let filter = args.required("filter")?;
        Ok(SetAuditConfig { filter, authorization_success: args.required("auditAuthorizationSuccess")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        keep(op, self.filter, self.authorization_success)?;
        Ok(Reply::ok())
    }
}

/// Keeps what is to be written down, and has it hold; gives the parameter as it was and as it is.
///
/// Errors: those of [`configurable`], of writing, and of a filter that is none.
fn keep(op: &Operation<'_>, filter: RawDoc<'_>, authorization_success: bool) -> Result<(DocBuf, DocBuf)> {
    let first = configurable(op)?.config().shown();
    let fields = doc! { "filter": filter, "auditAuthorizationSuccess": authorization_success };
    let (mut config, mut before) = (DocBuf::new(), first.clone());
    super::cluster_parameter::keep(op, Value::String(AUDIT_CONFIG), |time, old| {
        config = AuditConfig::new(filter, authorization_success, time)?.shown();
        // What this replaces, be it not yet what holds here.
        before = old.map_or_else(|| first.clone(), without_id);
        // It is shown twice where it is set as a parameter.
        for shown in [&before, &config, &before, &config] {
            room_of(op, shown.as_raw())?;
        }
        Ok(DocBuf::build(|out| {
            out.append("_id", AUDIT_CONFIG).append("clusterParameterTime", time).append_all(fields.as_raw());
        }))
    })?;
    note(op, "auditConfigure", Code::OK, || {
        doc! { "previous": before.as_raw(), "config": config.as_raw() }
    });
    parameters::refresh(op.node());
    Ok((before, config))
}

/// `setClusterParameter: {auditConfig: {...}}`, whose fields were checked.
///
/// Errors: `NoSuchKey` without an audit log; those of `setAuditConfig`.
pub fn change(op: &Operation<'_>, value: RawDoc<'_>) -> Result<()> {
    if op.request.front.audit.is_none() {
        return super::cluster_parameter::unknown(AUDIT_CONFIG);
    }
    let filter = value.get("filter").and_then(|filter| filter.as_doc()).unwrap_or(RawDoc::EMPTY);
    let successes = value.get("auditAuthorizationSuccess").is_some_and(|flag| flag.truthy());
    let (before, after) = keep(op, filter, successes)?;
    note(op, "setClusterParameter", Code::OK, || {
        let (before, after) = (with_id(before.as_raw()), with_id(after.as_raw()));
        doc! { "originalParameter": before.as_raw(), "updatedParameter": after.as_raw() }
    });
    Ok(())
}

/// The parameter as `getClusterParameter` shows it: what holds here, be it what the settings say. `None` without an audit log.
pub fn parameter(op: &Operation<'_>) -> Option<DocBuf> {
    let front = &op.request.front;
    let audit = front.audit.as_ref()?;
    let config = audit.config().shown();
    if audit.runtime || !front.parameters.bool("auditAuthorizationSuccess") {
        return Some(with_id(config.as_raw()));
    }
    Some(DocBuf::build(|out| {
        out.append("_id", AUDIT_CONFIG);
        for field in config.as_raw().iter() {
            match field.key() {
                "auditAuthorizationSuccess" => _ = out.append(field.key(), true),
                _ => _ = out.append_element(field),
            }
        }
    }))
}

fn with_id(config: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        out.append("_id", AUDIT_CONFIG).append_all(config);
    })
}

/// `{getAuditConfig: 1}`.
pub struct GetAuditConfig;

impl<'a> Command<'a, Operation<'a>> for GetAuditConfig {
    const NAME: &'static str = "getAuditConfig";
    const SPEC: Spec = spec("what the audit log writes down", false);

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(GetAuditConfig)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let config = configurable(op)?.config().shown();
        Ok(Reply::ok().with_fields(|reply| {
            reply.append_all(config.as_raw());
        }))
    }
}
