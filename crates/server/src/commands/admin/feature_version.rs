//! `setFeatureCompatibilityVersion`.

use sheaf_bson::{RawDoc, Value, doc};
use sheaf_errors::{Result, bail};

use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::feature_version::{DOCUMENT, NAMESPACE};
use crate::op::Operation;
use crate::reply::Reply;

/// The versions that data of this server can be marked with, oldest first: the last long-term release, the last of the
/// others, and this one.
const VERSIONS: [&str; 3] = ["8.0", "8.1", "8.2"];

/// `{setFeatureCompatibilityVersion: "8.2", confirm: true}`
pub struct SetFeatureVersion<'a> {
    version: &'a str,
    confirmed: bool,
    from_config_server: bool,
}

impl<'a> Command<'a, Operation<'a>> for SetFeatureVersion<'a> {
    const NAME: &'static str = "setFeatureCompatibilityVersion";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "says which version's features the data may have",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(
            Resource::Cluster,
            &[Action::SetFeatureCompatibilityVersion],
        )]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let version: &str = args.own()?;
        let confirmed = args.optional::<Loose>("confirm")?.is_some_and(|flag| flag.0);
        let from_config_server = args.optional::<Loose>("fromConfigServer")?.is_some_and(|flag| flag.0);
        args.ignore(&["phase", "changeTimestamp"]);
        for flag in ["downgradeOnDiskChanges", "dryRun", "skipDryRun"] {
            args.optional::<Loose>(flag)?;
        }
        if !VERSIONS.contains(&version) {
            bail!(
                4926900,
                "Invalid feature compatibility version value '{version}', expected '{}' or '{}' or '{}'",
                VERSIONS[0],
                VERSIONS[1],
                VERSIONS[2]
            );
        }
        Ok(SetFeatureVersion { version, confirmed, from_config_server })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let now = op.node().parameters.feature_version();
        if !self.confirmed && !self.from_config_server {
            bail!(
                7369100,
                "Once you have changed the feature compatibility version from {now} to {}, going back may need a support engagement. If you have read the release notes, run the command again with 'confirm: true'.",
                self.version
            );
        }
        if now == self.version {
            op.note_newest_commit();
            return Ok(Reply::ok());
        }
        // Between the two older ones there is no way but over the newest.
        let newest = VERSIONS[2];
        if now != newest && self.version != newest && !self.from_config_server {
            bail!(
                5147403,
                "cannot set featureCompatibilityVersion to '{}' while it is '{now}'",
                self.version
            );
        }
        let document = doc! { "_id": DOCUMENT, "version": self.version };
        with_writer(op, true, |w| {
            let collection = collection_for_write(op, w, NAMESPACE)?;
            let key = collection.record_key(Value::String(DOCUMENT))?;
            match w.read_for_update(&collection, &key)? {
                Some(old) => w.update(&collection, &key, RawDoc::new(&old), document.as_raw(), None),
                None => w.insert(&collection, document.as_raw()),
            }
        })?;
        Ok(Reply::ok())
    }
}
