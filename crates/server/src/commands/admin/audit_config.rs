//! `setAuditConfig` and `getAuditConfig`: what the audit log writes down, kept with the cluster's parameters.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::audit::noted::note;
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
        let first = configurable(op)?.config().shown();
        let fields = doc! { "filter": self.filter, "auditAuthorizationSuccess": self.authorization_success };
        let (mut config, mut before) = (DocBuf::new(), first.clone());
        super::cluster_parameter::keep(op, Value::String(AUDIT_CONFIG), |time, old| {
            config = AuditConfig::new(self.filter, self.authorization_success, time)?.shown();
            // What this replaces, be it not yet what holds here.
            before = old.map_or_else(|| first.clone(), without_id);
            Ok(DocBuf::build(|out| {
                out.append("_id", AUDIT_CONFIG)
                    .append("clusterParameterTime", time)
                    .append_all(fields.as_raw());
            }))
        })?;
        note(op, "auditConfigure", Code::OK, || {
            doc! { "previous": before.as_raw(), "config": config.as_raw() }
        });
        parameters::refresh(op.node());
        Ok(Reply::ok())
    }
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
