//! `compactStructuredEncryptionData` and `cleanupStructuredEncryptionData`: they make the collections small in which the tokens of
//! clients' encrypted fields lie. This server's writes keep none there, so these are empty, and there is nothing to be done.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Collection;

use super::names;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

const fn spec(help: &'static str, needs: &'static [Privilege]) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(needs),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    }
}

/// Finds the collection, and checks that there is a token for each field whose values are looked for.
///
/// Errors: `NamespaceNotFound`, 6346807, 7294900; `CommandNotSupported` where clients have kept tokens.
fn check(op: &Operation<'_>, name: &str, tokens: RawDoc<'_>, what: &str) -> Result<()> {
    let namespace = op.namespace(name);
    op.metrics().namespace.replace(Some(namespace.clone()));
    let catalog = op.catalog();
    let collection =
        names::existing(&catalog, &namespace, &format!("Collection {namespace} does not exist"))?;
    let Some(config) = encrypted_fields(collection) else {
        bail!(6346807, "Target namespace is not an encrypted collection");
    };
    let fields = config.get("fields").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    for field in fields.values().filter_map(|field| field.as_doc()) {
        let path = field.get("path").and_then(|path| path.as_str()).unwrap_or("");
        if field.get("queries").is_some()
            && !matches!(tokens.get(path), Some(Value::Binary(_) | Value::Document(_)))
        {
            bail!(7294900, "Missing {what} token for path '{path}'");
        }
    }
    for state in ["escCollection", "ecocCollection"] {
        let state = config.get(state).and_then(|name| name.as_str()).map(|name| op.namespace(name));
        if state.and_then(|state| catalog.collection(&state).cloned()).is_some_and(|found| found.count() > 0)
        {
            bail!(Code::COMMAND_NOT_SUPPORTED, "tokens of encrypted fields are not kept by this server");
        }
    }
    Ok(())
}

fn encrypted_fields(collection: &Collection) -> Option<RawDoc<'_>> {
    collection.options.as_raw().get("encryptedFields")?.as_doc()
}

/// Figures of a collection of tokens in which nothing was.
fn nothing(names: &[&str]) -> DocBuf {
    DocBuf::build(|out| names.iter().for_each(|name| _ = out.append(name, 0i64)))
}

/// `{compactStructuredEncryptionData: "users", compactionTokens: {ssn: BinData(...)}}`
pub struct CompactStructuredEncryptionData<'a> {
    collection: &'a str,
    tokens: RawDoc<'a>,
}

impl<'a> Command<'a, Operation<'a>> for CompactStructuredEncryptionData<'a> {
    const NAME: &'static str = "compactStructuredEncryptionData";
    const SPEC: Spec = spec(
        "makes the collections of encrypted fields' tokens small",
        &[Privilege::on(Resource::Collection, &[Action::CompactStructuredEncryptionData])],
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let tokens = args.required("compactionTokens")?;
        args.optional::<RawDoc<'_>>("encryptionInformation")?;
        args.optional::<f64>("anchorPaddingFactor")?;
        Ok(CompactStructuredEncryptionData { collection, tokens })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check(op, self.collection, self.tokens, "compaction")?;
        let ecoc = nothing(&["read", "deleted"]);
        let esc = nothing(&["read", "inserted", "updated", "deleted"]);
        Ok(Reply::ok().with("stats", &sheaf_bson::doc! { "ecoc": &ecoc, "esc": &esc }))
    }
}

/// `{cleanupStructuredEncryptionData: "users", cleanupTokens: {ssn: BinData(...)}}`
pub struct CleanupStructuredEncryptionData<'a> {
    collection: &'a str,
    tokens: RawDoc<'a>,
}

impl<'a> Command<'a, Operation<'a>> for CleanupStructuredEncryptionData<'a> {
    const NAME: &'static str = "cleanupStructuredEncryptionData";
    const SPEC: Spec = spec(
        "takes what is out of date out of the collections of encrypted fields' tokens",
        &[Privilege::on(Resource::Collection, &[Action::CleanupStructuredEncryptionData])],
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let tokens = args.required("cleanupTokens")?;
        Ok(CleanupStructuredEncryptionData { collection, tokens })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check(op, self.collection, self.tokens, "cleanup")?;
        let ecoc = nothing(&["read", "deleted"]);
        let esc = nothing(&["read", "inserted", "updated", "deleted"]);
        Ok(Reply::ok().with("stats", &sheaf_bson::doc! { "ecoc": &ecoc, "esc": &esc }))
    }
}
