//! `buildInfo`.

use sheaf_bson::DocWriter;
use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;
use crate::version;

/// `{buildInfo: 1}`.
pub struct BuildInfo;

impl<'a> Command<'a, Request<'a>> for BuildInfo {
    const NAME: &'static str = "buildInfo";
    const SPEC: Spec = Spec {
        aliases: &["buildinfo"],
        help: "the server's version and how it was built",
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
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(BuildInfo)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_fields(write))
    }
}

/// The fields of the answer; `local.startup_log` has them too.
pub fn write(doc: &mut DocWriter<'_, Vec<u8>>) {
    doc.append("version", version::COMPATIBLE);
    // Fields that tools expect to find; what would name a build of mongod stays general.
    doc.append("gitVersion", version::GIT);
    let _ = doc.array("modules");
    doc.append("allocator", "mimalloc");
    doc.append("javascriptEngine", if sheaf_js::is_enabled() { "quickjs" } else { "none" });
    doc.append("sysInfo", "deprecated");
    {
        let mut parts = doc.array("versionArray");
        for part in version::COMPATIBLE_PARTS {
            parts.push(part);
        }
    }
    doc.document("openssl").append("running", "disabled").append("compiled", "disabled");
    {
        let mut build = doc.document("buildEnvironment");
        build.append("distarch", std::env::consts::ARCH);
        build.append("target_arch", std::env::consts::ARCH);
        build.append("target_os", std::env::consts::OS);
        build.append("cxx", "rustc");
    }
    doc.append("bits", 64);
    doc.append("debug", cfg!(debug_assertions));
    doc.append("maxBsonObjectSize", sheaf_bson::MAX_DOCUMENT_SIZE as i32);
    {
        let mut engines = doc.array("storageEngines");
        engines.push("wiredTiger");
    }
    doc.document("sheaf").append("version", version::OWN);
}
