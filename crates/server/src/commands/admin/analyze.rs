//! `analyze`: statistics for a planner by cost, which MongoDB 8.2 has behind a flag that is off.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, NonNegative};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{analyze: "users", key: "age"}`
pub struct Analyze;

impl<'a> Command<'a, Operation<'a>> for Analyze {
    const NAME: &'static str = "analyze";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "statistics of a field, where plans are chosen by cost",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::Analyze])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.collection()?;
        args.optional::<&str>("key")?;
        let rate = args.optional::<f64>("sampleRate")?;
        if rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            bail!(Code::BAD_VALUE, "BSON field 'sampleRate' value must be between 0 and 1");
        }
        args.optional::<NonNegative>("sampleSize")?;
        args.optional::<NonNegative>("numberBuckets")?;
        args.optional::<RawDoc<'a>>("writeConcern")?;
        Ok(Analyze)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        bail!(6660400, "Analyze command requires common query framework feature flag to be enabled")
    }
}
