//! The handshake of a connection: what a client tells of itself in its first `hello`, and what it is told, whatever the
//! server's role. Whose place in which topology it is, a role adds.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use sheaf_auth::Mechanism;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_wire::Compressor;

use crate::args::{Args, Array, Loose};
use crate::audit::noted;
use crate::request::Request;
use crate::sasl::{self, Speculated};

/// What a `hello` or `isMaster` says of its client.
pub struct Handshake<'a> {
    /// Whether it is the older spelling.
    pub legacy: bool,
    client: Option<RawDoc<'a>>,
    compression: Option<RawDoc<'a>>,
    /// The user whose mechanisms are asked for.
    sasl_supported_mechs: Option<Cow<'a, str>>,
    /// A first message of a conversation.
    speculative: Option<RawDoc<'a>>,
    /// Whether the request says that the client knows `hello`, if it says anything.
    hello_ok: Option<bool>,
}

/// What both sides agree on.
pub struct Agreed {
    /// The compressors that both know.
    compressors: Vec<Compressor>,
    /// The mechanisms of the user that was asked about.
    mechanisms: Option<Vec<Mechanism>>,
    /// The answer to the first message of a conversation.
    speculative: Option<Speculated>,
}

impl<'a> Handshake<'a> {
    /// Reads the arguments that every role takes.
    pub fn parse(args: &mut Args<'a>, legacy: bool) -> Result<Self> {
        Ok(Handshake {
            legacy,
            client: args.optional("client")?,
            compression: args.optional::<Array<'a>>("compression")?.map(|array| array.0),
            sasl_supported_mechs: supported_by(args)?,
            speculative: args.optional("speculativeAuthenticate")?,
            hello_ok: checked(args)?,
        })
    }

    /// Keeps the client's metadata, begins a conversation, and gives what is agreed.
    ///
    /// Errors: `ClientMetadataCannotBeMutated`, and mistakes in the metadata.
    pub fn settle(&self, request: &Request<'_>) -> Result<Agreed> {
        let compressors = self.settle_connection(request)?;
        let mechanisms =
            self.sasl_supported_mechs.as_deref().map(|user| sasl::supported(request, user)).transpose()?;
        // By a mechanism that the same reply says the user has not, no conversation can come to its end.
        let lacks = |asked: RawDoc<'_>| {
            let mechanism = asked.get("mechanism").and_then(|name| Mechanism::from_name(name.as_str()?));
            mechanism.is_some_and(|one| mechanisms.as_ref().is_some_and(|all| !all.contains(&one)))
        };
        let speculative = self.speculative.filter(|asked| !lacks(*asked));
        let speculative = speculative.and_then(|asked| Speculated::run(request, asked));
        Ok(Agreed { compressors, mechanisms, speculative })
    }

    fn settle_connection(&self, request: &Request<'_>) -> Result<Vec<Compressor>> {
        let mut shake = request.client.handshake.lock();
        if let Some(metadata) = self.client {
            if shake.metadata.is_some() {
                bail!(
                    Code::CLIENT_METADATA_CANNOT_BE_MUTATED,
                    "The client metadata document may only be sent in the first hello"
                );
            }
            check_metadata(metadata)?;
            noted::metadata(request, metadata)?;
            shake.metadata = Some(DocBuf::from(metadata));
            let attributes = sheaf_bson::doc! {
                "remote": &request.client.remote_text(), "client": &request.client.context(), "doc": metadata,
            };
            crate::log::info(
                "NETWORK",
                crate::log::ids::CLIENT_METADATA,
                &request.client.context(),
                "client metadata",
                Some(attributes),
            );
        }
        shake.done = true;
        if !self.legacy || self.hello_ok == Some(true) {
            request.client.hello_ok.store(true, Ordering::Relaxed);
        }
        if let Some(offered) = self.compression {
            let known = &request.front.options.compressors;
            shake.compressors = offered
                .values()
                .filter_map(|name| name.as_str().and_then(Compressor::from_name))
                .filter(|compressor| known.contains(compressor))
                .collect();
            return Ok(shake.compressors.clone());
        }
        Ok(Vec::new())
    }

    /// The first fields of the reply.
    pub fn begin(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        // Told to who asks.
        if self.hello_ok.is_some() {
            doc.append("helloOk", true);
        }
    }

    /// The last fields of the reply, the same for every role: limits, versions, and what was agreed.
    pub fn end(&self, request: &Request<'_>, agreed: &Agreed, doc: &mut DocWriter<'_, Vec<u8>>) {
        let session_minutes = request.front.parameters.int("localLogicalSessionTimeoutMinutes") as i32;
        doc.append("maxBsonObjectSize", sheaf_bson::MAX_DOCUMENT_SIZE as i32);
        doc.append("maxMessageSizeBytes", sheaf_wire::MAX_MESSAGE_SIZE as i32);
        doc.append("maxWriteBatchSize", 100_000);
        doc.append("localTime", Value::DateTime(request.now_millis()));
        doc.append("logicalSessionTimeoutMinutes", session_minutes);
        doc.append("connectionId", request.client.id as i32);
        doc.append("minWireVersion", 0);
        doc.append("maxWireVersion", crate::version::MAX_WIRE_VERSION);
        doc.append("readOnly", false);
        if !agreed.compressors.is_empty() {
            let mut names = doc.array("compression");
            for compressor in &agreed.compressors {
                names.push(compressor.name());
            }
        }
        if let Some(mechanisms) = &agreed.mechanisms {
            let mut names = doc.array("saslSupportedMechs");
            for mechanism in mechanisms {
                names.push(mechanism.name());
            }
        }
        if let Some(answer) = &agreed.speculative {
            answer.write(&mut doc.document("speculativeAuthenticate"));
        }
    }
}

/// The user whose mechanisms are asked for: `db.user`, or `{user, db}`.
fn supported_by<'a>(args: &mut Args<'a>) -> Result<Option<Cow<'a, str>>> {
    const NAME: &str = "saslSupportedMechs";
    match args.value(NAME) {
        Value::Document(user) => {
            let mut parts = Args::of_part("saslSupportedMechs", user)?;
            let (name, db): (&str, &str) = (parts.required("user")?, parts.required("db")?);
            parts.finish()?;
            Ok(Some(Cow::Owned(format!("{db}.{name}"))))
        }
        Value::String(user) => Ok(Some(Cow::Borrowed(user))),
        Value::Missing | Value::Null | Value::Undefined => Ok(None),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{}.{NAME}' is the wrong type '{}', expected types '[string, object]'",
            args.command(),
            other.type_name()
        ),
    }
}

/// Checks what a greeting says besides, and gives `helloOk`.
fn checked(args: &mut Args<'_>) -> Result<Option<bool>> {
    for name in ["forShell", "hangUpOnStepDown"] {
        args.optional::<Loose>(name)?;
    }
    args.optional::<&str>("hostInfo")?;
    args.optional::<bool>("loadBalanced")?;
    args.optional::<RawDoc<'_>>("internalClient")?;
    Ok(args.optional::<Loose>("helloOk")?.map(|flag| flag.0))
}

/// Largest `client` document that is kept.
const MAX_METADATA_BYTES: usize = 1024;
/// Longest `application.name`.
const MAX_APP_NAME_BYTES: usize = 128;

fn check_metadata(metadata: RawDoc<'_>) -> Result<()> {
    if metadata.len() > MAX_METADATA_BYTES {
        bail!(
            Code::CLIENT_METADATA_DOCUMENT_TOO_LARGE,
            "The client metadata document must be less then or equal to {MAX_METADATA_BYTES} bytes"
        );
    }
    let sub = |doc: RawDoc<'_>, name: &str, part: &str| -> Result<()> {
        match doc.get(name).map(|v| v.as_doc()) {
            Some(Some(inner)) if inner.get(part).and_then(|v| v.as_str()).is_some() => Ok(()),
            _ => bail!(
                Code::CLIENT_METADATA_MISSING_FIELD,
                "Missing required field '{name}.{part}' in the client metadata document"
            ),
        }
    };
    if let Some(application) = metadata.get("application") {
        let Some(application) = application.as_doc() else {
            bail!(
                Code::TYPE_MISMATCH,
                "The 'application' field is required to be a BSON document in the client metadata document"
            );
        };
        if application.get("name").and_then(|v| v.as_str()).is_some_and(|n| n.len() > MAX_APP_NAME_BYTES) {
            bail!(
                Code::CLIENT_METADATA_APP_NAME_TOO_LARGE,
                "The 'application.name' field must be less then or equal to {MAX_APP_NAME_BYTES} bytes in the client metadata document"
            );
        }
    }
    sub(metadata, "driver", "name")?;
    sub(metadata, "driver", "version")?;
    sub(metadata, "os", "type")
}
