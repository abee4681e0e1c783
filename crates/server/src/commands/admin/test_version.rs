//! `testVersion2`: with it drivers test what they do about commands outside of API version 1.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{testVersion2: 1}`.
pub struct TestVersion2;

impl<'a> Command<'a, Operation<'a>> for TestVersion2 {
    const NAME: &'static str = "testVersion2";
    const SPEC: Spec =
        Spec::plain().test_only().help("a command that API version 1 does not have, for tests");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(TestVersion2)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
