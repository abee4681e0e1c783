//! The identity providers that a server believes, as the parameter `oidcIdentityProviders` names them.

use std::path::PathBuf;
use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value, json};
use sheaf_errors::{Code, Result, bail};
use sheaf_regex::{Flags, Regex};

use super::Refusal;
use super::token::Token;
use crate::name::{RoleName, UserName};

/// The parameter.
const PARAMETER: &str = "oidcIdentityProviders";

/// An identity provider.
pub struct Provider {
    /// Who signs.
    pub issuer: String,
    /// For whom the tokens have to be.
    pub audience: String,
    /// What stands before the names of its users and roles.
    prefix: String,
    /// Which users come from it.
    pattern: Option<Regex>,
    client: Option<String>,
    scopes: Option<Vec<String>>,
    principal: String,
    /// The claim with the roles; `None` where users are looked up here.
    roles: Option<String>,
    logged: Vec<String>,
    /// How often the keys are read anew, in seconds; 0 is never.
    pub poll_seconds: i64,
    human: bool,
    /// Where the keys are, if not at the issuer's address.
    pub file: Option<PathBuf>,
}

/// Whom a token names.
#[derive(Clone, PartialEq, Debug)]
pub struct Identity {
    /// The user.
    pub user: UserName,
    /// The principal's name, as the provider has it.
    pub principal: String,
    /// The roles that the token grants; `None` where the user is one of `admin.system.users`.
    pub roles: Option<Vec<RoleName>>,
    /// The claims that logs show.
    pub logged: DocBuf,
}

/// Reads one provider's fields, and knows where it is.
struct Fields<'a> {
    at: usize,
    doc: RawDoc<'a>,
}

impl<'a> Fields<'a> {
    fn optional<T>(
        &self,
        name: &str,
        kind: &str,
        read: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.doc.get(name) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '{PARAMETER}[{}].{name}' is the wrong type '{}', expected type '{kind}'",
                self.at,
                value.type_name()
            ),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.optional(name, "string", |value| value.as_str().map(str::to_owned))
    }

    fn required(&self, name: &str) -> Result<String> {
        match self.text(name)? {
            Some(text) => Ok(text),
            None => {
                bail!(40414, "BSON field '{PARAMETER}[{}].{name}' is missing but a required field", self.at)
            }
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.optional(name, "bool", |value| match value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        self.optional(name, "array", |value| match value {
            Value::Array(list) => list.values().map(|one| one.as_str().map(str::to_owned)).collect(),
            _ => None,
        })
    }
}

const KNOWN: &[&str] = &[
    "issuer",
    "audience",
    "authNamePrefix",
    "matchPattern",
    "clientId",
    "requestScopes",
    "principalName",
    "useAuthorizationClaim",
    "authorizationClaim",
    "logClaims",
    "JWKSPollSecs",
    "supportsHumanFlows",
    "JWKSFile",
];

impl Provider {
    fn read(at: usize, doc: RawDoc<'_>) -> Result<Self> {
        let fields = Fields { at, doc };
        if let Some(other) = doc.iter().find(|field| !KNOWN.contains(&field.key())) {
            bail!(40415, "BSON field '{PARAMETER}[{at}].{}' is an unknown field.", other.key());
        }
        let prefix = fields.required("authNamePrefix")?;
        if prefix.is_empty() || !prefix.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            bail!(
                Code::BAD_VALUE,
                "{PARAMETER}[{at}].authNamePrefix must have letters, digits, hyphens and underscores only"
            );
        }
        let pattern = match fields.text("matchPattern")? {
            Some(pattern) => Some(Regex::new(&pattern, Flags::default()).map_err(|error| {
                error.into_error(|invalid| {
                    sheaf_errors::Error::new(
                        Code::BAD_VALUE,
                        format!("{PARAMETER}[{at}].matchPattern: {}", invalid.reason()),
                    )
                })
            })?),
            None => None,
        };
        let human = fields.flag("supportsHumanFlows")?.unwrap_or(true);
        let client = fields.text("clientId")?;
        if human && client.is_none() {
            bail!(
                Code::BAD_VALUE,
                "{PARAMETER}[{at}]: clientId is required where supportsHumanFlows is true"
            );
        }
        let roles = fields.text("authorizationClaim")?;
        let by_claim = fields.flag("useAuthorizationClaim")?.unwrap_or(true);
        if by_claim && roles.is_none() {
            bail!(
                Code::BAD_VALUE,
                "{PARAMETER}[{at}]: authorizationClaim is required where useAuthorizationClaim is true"
            );
        }
        let poll_seconds = fields.optional("JWKSPollSecs", "int", |value| value.as_f64())?.unwrap_or(0.0);
        if !(0.0..=f64::from(i32::MAX)).contains(&poll_seconds) {
            bail!(Code::BAD_VALUE, "{PARAMETER}[{at}].JWKSPollSecs must not be negative");
        }
        Ok(Provider {
            issuer: fields.required("issuer")?,
            audience: fields.required("audience")?,
            prefix,
            pattern,
            client,
            scopes: fields.texts("requestScopes")?,
            principal: fields.text("principalName")?.unwrap_or_else(|| "sub".to_owned()),
            roles: roles.filter(|_| by_claim),
            logged: fields.texts("logClaims")?.unwrap_or_else(|| vec!["iss".to_owned(), "sub".to_owned()]),
            poll_seconds: poll_seconds as i64,
            human,
            file: fields.text("JWKSFile")?.map(PathBuf::from),
        })
    }

    /// Whether it makes the same of each token as another one: who was named by it then would be now.
    fn names_alike(&self, other: &Provider) -> bool {
        (&self.issuer, &self.audience, &self.prefix) == (&other.issuer, &other.audience, &other.prefix)
            && (&self.principal, &self.roles) == (&other.principal, &other.roles)
    }

    /// What a client is told who asks where to get a token.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        doc.append("issuer", &self.issuer);
        if let Some(client) = &self.client {
            doc.append("clientId", client);
        }
        if let Some(scopes) = &self.scopes {
            let mut list = doc.array("requestScopes");
            for scope in scopes {
                list.push(scope);
            }
        }
    }

    /// Whom claims name that are signed.
    ///
    /// Errors: they name nobody.
    pub fn identity(&self, claims: RawDoc<'_>) -> std::result::Result<Identity, Refusal> {
        let principal = claims.get(&self.principal).and_then(|value| value.as_str());
        let principal = principal.filter(|name| !name.is_empty() && !name.contains('\0'));
        let principal = principal.ok_or("the token names no principal")?;
        let named = |name: &str| format!("{}/{name}", self.prefix);
        let roles = match &self.roles {
            None => None,
            Some(claim) => Some(match claims.get(claim) {
                Some(Value::String(one)) => vec![RoleName::new(named(one), "admin")],
                Some(Value::Array(list)) => {
                    let one = |value: Value<'_>| Some(RoleName::new(named(value.as_str()?), "admin"));
                    let all: Option<Vec<_>> = list.values().map(one).collect();
                    all.ok_or("the claim with the roles has something else")?
                }
                _ => return Err("the token has no claim with roles"),
            }),
        };
        let logged = DocBuf::build(|doc| {
            for claim in &self.logged {
                if let Some(value) = claims.get(claim) {
                    doc.append(claim, value);
                }
            }
        });
        Ok(Identity {
            user: UserName::new(named(principal), "$external"),
            principal: principal.to_owned(),
            roles,
            logged,
        })
    }
}

/// All providers, in their order.
#[derive(Default)]
pub struct Providers {
    list: Vec<Arc<Provider>>,
    shown: ArrayBuf,
}

impl Providers {
    /// Reads the parameter's text, a JSON array.
    ///
    /// Errors: `TypeMismatch`, `BadValue` and the like.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Providers::default());
        }
        match json::parse_array(text) {
            Ok(list) => Providers::read(list.as_raw()),
            Err(error) => bail!(Code::TYPE_MISMATCH, "{PARAMETER} is no JSON array: {error}"),
        }
    }

    /// Reads the parameter.
    ///
    /// Errors: `TypeMismatch`, `BadValue` and the like.
    pub fn read(list: RawDoc<'_>) -> Result<Self> {
        let mut found = Vec::new();
        for (at, value) in list.values().enumerate() {
            let Some(doc) = value.as_doc() else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '{PARAMETER}[{at}]' is the wrong type '{}', expected type 'object'",
                    value.type_name()
                );
            };
            found.push(Arc::new(Provider::read(at, doc)?));
        }
        check(&found)?;
        let shown = ArrayBuf::build(|out| {
            for value in list.values() {
                out.push(value);
            }
        });
        Ok(Providers { list: found, shown })
    }

    /// The parameter's value.
    pub fn shown(&self) -> RawDoc<'_> {
        self.shown.as_raw()
    }

    /// All providers.
    pub fn iter(&self) -> impl Iterator<Item = &Provider> {
        self.list.iter().map(Arc::as_ref)
    }

    /// Whether a login that one of earlier providers has vouched for goes on: one of these makes the same of its token.
    pub fn still_have(&self, earlier: &Provider) -> bool {
        self.iter().any(|provider| provider.names_alike(earlier))
    }

    /// The provider that this token says is its own.
    ///
    /// Errors: there is none.
    pub fn of(&self, token: &Token) -> std::result::Result<&Arc<Provider>, Refusal> {
        let of_issuer = || self.list.iter().filter(|provider| token.issuer() == Some(&provider.issuer));
        if of_issuer().next().is_none() {
            return Err("the token has an unknown issuer");
        }
        of_issuer().find(|provider| token.is_for(&provider.audience)).ok_or("the token is for others")
    }

    /// Where a person of this name gets a token.
    ///
    /// Errors: nowhere, or it is not clear.
    pub fn for_person(&self, name: Option<&str>) -> std::result::Result<&Provider, Refusal> {
        let mut people = self.iter().filter(|provider| provider.human);
        let Some(name) = name else {
            let one = people.next().ok_or("no identity provider serves people")?;
            return match people.next() {
                None => Ok(one),
                Some(_) => Err("there are several identity providers, so a principal has to be named"),
            };
        };
        let serves = |provider: &&Provider| {
            provider.pattern.as_ref().is_none_or(|pattern| pattern.is_match(name).unwrap_or(false))
        };
        people.find(serves).ok_or("no identity provider serves this principal")
    }
}

/// Whether the providers can be told from each other.
fn check(list: &[Arc<Provider>]) -> Result<()> {
    if list.iter().filter(|provider| provider.human).count() > 1
        && let Some(at) = list.iter().position(|provider| provider.human && provider.pattern.is_none())
    {
        bail!(
            Code::BAD_VALUE,
            "{PARAMETER}[{at}]: matchPattern is required where several providers have supportsHumanFlows"
        );
    }
    let last = list.iter().rposition(|provider| provider.pattern.is_some());
    if let Some(at) = list.iter().position(|provider| provider.pattern.is_none())
        && last.is_some_and(|last| at < last)
    {
        bail!(
            Code::BAD_VALUE,
            "{PARAMETER}[{at}]: providers without matchPattern stand behind those with one"
        );
    }
    for (at, one) in list.iter().enumerate() {
        for other in list[..at].iter().filter(|other| other.issuer == one.issuer) {
            if other.audience == one.audience {
                bail!(Code::BAD_VALUE, "{PARAMETER}[{at}]: another provider has this issuer and audience");
            }
            if other.poll_seconds != one.poll_seconds || other.file != one.file {
                bail!(
                    Code::BAD_VALUE,
                    "{PARAMETER}[{at}]: JWKSPollSecs and JWKSFile of one issuer must be the same"
                );
            }
        }
    }
    Ok(())
}
