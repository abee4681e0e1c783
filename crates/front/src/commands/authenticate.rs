//! Authentication, on a server that has no users yet.

use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{saslStart: 1, ...}`.
pub struct SaslStart;

impl<'a> Command<'a, Request<'a>> for SaslStart {
    const NAME: &'static str = "saslStart";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "begins to prove who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(SaslStart)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        bail!(Code::AUTHENTICATION_FAILED, "Authentication failed.")
    }
}

/// `{saslContinue: 1, ...}`.
pub struct SaslContinue;

impl<'a> Command<'a, Request<'a>> for SaslContinue {
    const NAME: &'static str = "saslContinue";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "goes on proving who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(SaslContinue)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        bail!(Code::PROTOCOL_ERROR, "No SASL session state found")
    }
}

/// `{authenticate: 1, ...}`.
pub struct Authenticate;

impl<'a> Command<'a, Request<'a>> for Authenticate {
    const NAME: &'static str = "authenticate";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "proves by a certificate who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(Authenticate)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        bail!(Code::AUTHENTICATION_FAILED, "Authentication failed.")
    }
}

/// `{logout: 1}`.
pub struct Logout;

impl<'a> Command<'a, Request<'a>> for Logout {
    const NAME: &'static str = "logout";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "forgets who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(Logout)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
