//! `testVersion2`: with it drivers test what they do about commands outside of API version 1.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{testVersion2: 1}`.
pub struct TestVersion2;

impl<'a> Command<'a, Request<'a>> for TestVersion2 {
    const NAME: &'static str = "testVersion2";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "a command that API version 1 does not have, for tests",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: true,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(TestVersion2)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
