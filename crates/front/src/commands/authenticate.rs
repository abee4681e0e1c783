//! How a client proves who it is, and takes it back.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::audit::noted;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;
use crate::sasl::{self, Start};

fn payload<'a>(args: &mut Args<'a>) -> Result<&'a [u8]> {
    match args.value("payload") {
        Value::Binary(payload) => Ok(payload.bytes),
        Value::Missing => {
            bail!(40414, "BSON field '{}.payload' is missing but a required field", args.command())
        }
        other => bail!(
            Code::TYPE_MISMATCH,
            "Wrong type for field. Expected BinData for payload, got {}",
            other.type_name()
        ),
    }
}

/// `{saslStart: 1, mechanism: ..., payload: ...}`.
pub struct SaslStart<'a>(Start<'a>);

impl<'a> Command<'a, Request<'a>> for SaslStart<'a> {
    const NAME: &'static str = "saslStart";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "begins to prove who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: true,
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
        let mechanism = args.required("mechanism")?;
        let payload = payload(args)?;
        let options: Option<RawDoc<'a>> = args.optional("options")?;
        args.ignore(&["autoAuthorize"]);
        Ok(SaslStart(Start::new(mechanism, payload, options)))
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        op.client.access.lock().is_speculative = false;
        let answer = self.0.run(op, op.db)?;
        Ok(Reply::ok().with_fields(|doc| answer.write(doc)))
    }
}

/// `{saslContinue: 1, conversationId: ..., payload: ...}`.
pub struct SaslContinue<'a> {
    conversation: i32,
    payload: &'a [u8],
}

impl<'a> Command<'a, Request<'a>> for SaslContinue<'a> {
    const NAME: &'static str = "saslContinue";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "goes on proving who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: true,
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
        let conversation = args.required("conversationId")?;
        Ok(SaslContinue { conversation, payload: payload(args)? })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let answer = sasl::go_on(op, self.conversation, self.payload)?;
        Ok(Reply::ok().with_fields(|doc| answer.write(doc)))
    }
}

/// `{authenticate: 1, mechanism: "MONGODB-X509", user: ...}`.
pub struct Authenticate<'a> {
    mechanism: Option<&'a str>,
    user: Option<&'a str>,
}

impl<'a> Command<'a, Request<'a>> for Authenticate<'a> {
    const NAME: &'static str = "authenticate";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "proves by a certificate who the client is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: true,
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
        let (mechanism, user) = (args.optional("mechanism")?, args.optional("user")?);
        args.ignore_rest();
        Ok(Authenticate { mechanism, user })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        if self.mechanism.is_some_and(|mechanism| mechanism != "MONGODB-X509") {
            bail!(Code::AUTHENTICATION_FAILED, "Authentication failed.");
        }
        op.client.access.lock().is_speculative = false;
        let user = sasl::by_certificate(op, op.db, self.user)?;
        Ok(Reply::ok().with("dbname", op.db).with("user", &user))
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

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let goes = op.client.access.lock().user().is_some_and(|user| user.db == op.db);
        if goes && op.front.audit.is_some() {
            // Who logs out does so, whether users can be read or not.
            let account = sasl::account(op).ok().flatten();
            noted::logged_out(op.front, op.client, account.as_deref(), "Logging out on user request")?;
        }
        let mut access = op.client.access.lock();
        access.login = access.login.take().filter(|login| login.name.db != op.db);
        access.conversation = None;
        let is_stranger = op.front.access.enabled && access.login.is_none();
        drop(access);
        if is_stranger {
            op.front.is_stranger(op.client);
        }
        Ok(Reply::ok())
    }
}
