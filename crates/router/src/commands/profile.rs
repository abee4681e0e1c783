//! `profile`: which operations of this router are logged as slow. It has nothing that a profiler could write to.

use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::Command;
use sheaf_front::reply::Reply;
use sheaf_server::commands::diag::profile::Profile;

use crate::op::Operation;

/// `{profile: 0, slowms: 50, sampleRate: 0.5, filter: {...}}`, or `{profile: -1}`.
///
/// Errors: `BadValue`, where it is to be switched on.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let asked = <Profile<'a> as Command<'a, sheaf_server::op::Operation<'a>>>::parse(args)?;
    args.finish()?;
    if asked.records() {
        bail!(
            Code::BAD_VALUE,
            "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change 'slowms', 'sampleRate', or \
             'filter' settings for logging, or -1 to view current values"
        );
    }
    asked.set(&op.router.profiling, op.db())
}
