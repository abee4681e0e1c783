//! `oidcListKeys` and `oidcRefreshKeys`: the keys of identity providers.

use sheaf_errors::{Code, Error, Result};

use crate::args::{Args, Array};
use crate::command::*;
use crate::reactor::give_way;
use crate::reply::Reply;
use crate::request::Request;

/// What both say of themselves.
const fn spec(help: &'static str, needs: &'static [Privilege], threads: Threads) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(needs),
        spread: Spread::Router,
        counter: Counter::Command,
        threads,
        ends_with_client: false,
    }
}

/// The issuers that a command means; all if it names none.
fn issuers<'a>(args: &mut Args<'a>) -> Result<Option<Vec<&'a str>>> {
    let Some(list) = args.optional::<Array<'a>>("identityProviders")? else { return Ok(None) };
    let name = |value: sheaf_bson::Value<'a>| {
        value.as_str().ok_or_else(|| {
            let text = format!(
                "BSON field '{}.identityProviders' has a value of the wrong type '{}', expected type 'string'",
                args.command(),
                value.type_name()
            );
            Error::new(Code::TYPE_MISMATCH, text)
        })
    };
    list.0.values().map(name).collect::<Result<_>>().map(Some)
}

/// `{oidcListKeys: 1, identityProviders: [issuer, ...]}`.
pub struct OidcListKeys<'a>(Option<Vec<&'a str>>);

impl<'a> Command<'a, Request<'a>> for OidcListKeys<'a> {
    const NAME: &'static str = "oidcListKeys";
    const SPEC: Spec = spec(
        "the keys by which tokens of identity providers are verified",
        &[Privilege::on(Resource::Cluster, &[Action::OidcListKeys])],
        Threads::Control,
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        issuers(args).map(OidcListKeys)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let providers = op.front.oidc.providers();
        let mut issuers: Vec<_> = providers.iter().map(|provider| provider.issuer.as_str()).collect();
        issuers.sort_unstable();
        issuers.dedup();
        issuers.retain(|issuer| self.0.as_ref().is_none_or(|wanted| wanted.contains(issuer)));
        Ok(Reply::ok().with_document("keySets", |sets| {
            for issuer in issuers {
                let mut set = sets.document(issuer);
                let mut list = set.array("keys");
                for key in op.front.oidc.keys(issuer).shown() {
                    list.push(key);
                }
            }
        }))
    }
}

/// `{oidcRefreshKeys: 1, identityProviders: [issuer, ...]}`.
pub struct OidcRefreshKeys<'a>(Option<Vec<&'a str>>);

impl<'a> Command<'a, Request<'a>> for OidcRefreshKeys<'a> {
    const NAME: &'static str = "oidcRefreshKeys";
    const SPEC: Spec = spec(
        "reads the keys of identity providers anew",
        &[Privilege::on(Resource::Cluster, &[Action::OidcRefreshKeys])],
        Threads::Data,
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        issuers(args).map(OidcRefreshKeys)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let wanted = |issuer: &str| self.0.as_ref().is_none_or(|wanted| wanted.contains(&issuer));
        let read = give_way(true, || op.front.oidc.refresh(|provider| wanted(&provider.issuer)));
        read.map_err(|why| Error::new(Code::OPERATION_FAILED, format!("Could not refresh keys: {why}")))?;
        Ok(Reply::ok())
    }
}
