//! `rotateCertificates`: the files of TLS are read anew, for connections from now on.

use sheaf_bson::doc;
use sheaf_errors::{Code, Error, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{rotateCertificates: 1, message: "..."}`.
pub struct RotateCertificates<'a> {
    message: Option<&'a str>,
}

impl<'a> Command<'a, Request<'a>> for RotateCertificates<'a> {
    const NAME: &'static str = "rotateCertificates";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "reads certificates, keys and revocations anew",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::RotateCertificates])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(RotateCertificates { message: args.optional("message")? })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let Some(tls) = &op.front.tls else {
            bail!(Code::ILLEGAL_OPERATION, "rotateCertificates needs a server with TLS");
        };
        tls.rotate().map_err(|why| Error::new(Code::INVALID_SSL_CONFIGURATION, why))?;
        let attributes = doc! { "message": self.message.unwrap_or_default() };
        let text = "Successfully rotated X509 certificates";
        crate::log::info(
            "NETWORK",
            crate::log::ids::CERTIFICATES_ROTATED,
            &op.client.context(),
            text,
            Some(attributes),
        );
        crate::tls::control::warn_of_end(op.front);
        Ok(Reply::ok())
    }
}
