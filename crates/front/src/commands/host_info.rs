//! `hostInfo`.

use sheaf_bson::Value;
use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{hostInfo: 1}`.
pub struct HostInfo;

impl<'a> Command<'a, Request<'a>> for HostInfo {
    const NAME: &'static str = "hostInfo";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "the machine under the server",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::HostInfo])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(HostInfo)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as i32;
        let memory_mb = (crate::system::total_memory() >> 20) as i64;
        let limit_mb = (crate::system::memory_limit() >> 20) as i64;
        Ok(Reply::ok()
            .with_document("system", |doc| {
                doc.append("currentTime", Value::DateTime(op.now_millis()));
                doc.append("hostname", &op.front.host_and_port());
                doc.append("cpuAddrSize", 64);
                doc.append("memSizeMB", memory_mb);
                doc.append("memLimitMB", limit_mb);
                doc.append("numCores", cores);
                doc.append("numCoresAvailableToProcess", cores);
                doc.append("cpuArch", std::env::consts::ARCH);
                doc.append("numaEnabled", false);
            })
            .with_document("os", |doc| {
                let (name, version) = crate::system::os_release();
                doc.append("type", "Linux").append("name", &name).append("version", &version);
            })
            .with_document("extra", |doc| {
                doc.append("versionString", &crate::system::kernel_version());
                doc.append("pageSize", 4096i64);
            }))
    }
}
