//! `features` and `validateDBMetadata`.

use sheaf_bson::RawDoc;
use sheaf_errors::{Result, bail};

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{features: 1}`.
pub struct Features;

impl<'a> Command<'a, Operation<'a>> for Features {
    const NAME: &'static str = "features";
    const SPEC: Spec = Spec::plain().help("what this build can do");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["oidReset"]);
        Ok(Features)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let machine = op.node().process_id.0;
        let machine = i32::from_le_bytes([machine[4], machine[5], machine[6], 0]);
        Ok(Reply::ok().with("oidMachine", machine))
    }
}

/// `{validateDBMetadata: 1, apiParameters: {...}}`: no stored definition here breaks the stable API.
pub struct ValidateDbMetadata;

impl<'a> Command<'a, Operation<'a>> for ValidateDbMetadata {
    const NAME: &'static str = "validateDBMetadata";
    const SPEC: Spec = Spec::plain().help("checks stored definitions against an API version");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let parameters: RawDoc<'a> = args.required("apiParameters")?;
        if parameters.get("version").and_then(|v| v.as_str()).is_none() {
            bail!(40414, "BSON field 'APIParamsForCmd.version' is missing but a required field");
        }
        args.ignore(&["db", "collection", "collections"]);
        Ok(ValidateDbMetadata)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_array("apiVersionErrors", |_| {}))
    }
}
