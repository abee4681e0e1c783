//! `MONGODB-OIDC`: a client shows a token of an identity provider, or asks first where to get one.

use std::sync::Arc;
use std::time::Duration;

use sheaf_auth::UserName;
use sheaf_auth::oidc::{Refusal, Token};
use sheaf_bson::{DocBuf, MAX_DEPTH, RawDoc, validate};
use sheaf_errors::{Code, Error, Result};

use super::{Answer, log_in, refuse};
use crate::access::{Conversation, Step};
use crate::oidc::{ByToken, OIDC};
use crate::reactor::give_way;
use crate::request::Request;

/// What a client has sent.
fn message(payload: &[u8]) -> std::result::Result<RawDoc<'_>, Refusal> {
    match validate(payload, MAX_DEPTH) {
        Ok(length) if length == payload.len() => Ok(RawDoc::new(payload)),
        _ => Err("the message is no BSON"),
    }
}

fn text<'a>(message: RawDoc<'a>, name: &str) -> std::result::Result<Option<&'a str>, Refusal> {
    match message.get(name) {
        None => Ok(None),
        Some(value) => value.as_str().map(Some).ok_or("a field of the message is no string"),
    }
}

fn refused(request: &Request<'_>, why: Refusal) -> Error {
    let error = Error::new(Code::AUTHENTICATION_FAILED, why);
    refuse(request, OIDC, &UserName::new("", "$external"), &error)
}

/// A client's first message: a token, or whose it wants one to be.
///
/// Errors: `AuthenticationFailed`.
pub fn start(request: &Request<'_>, db: &str, payload: &[u8]) -> Result<Answer> {
    let refused = |why| refused(request, why);
    if db != "$external" {
        return Err(refused("the database is not $external"));
    }
    let message = message(payload).map_err(refused)?;
    let token = text(message, "jwt").map_err(refused)?;
    let id = {
        let mut access = request.client.access.lock();
        access.conversations = access.conversations.wrapping_add(1);
        access.conversations
    };
    if let Some(token) = token {
        show(request, token, None)?;
        return Ok(Answer { conversation: id, done: true, payload: Vec::new() });
    }
    let principal = text(message, "n").map_err(refused)?;
    let providers = request.front.oidc.providers();
    let provider = providers.for_person(principal).map_err(refused)?;
    let answer = DocBuf::build(|doc| provider.write(doc));
    request.client.access.lock().conversation = Some(Conversation {
        id,
        user: UserName::new(principal.unwrap_or_default(), "$external"),
        account: None,
        mechanism: OIDC,
        step: Step::Token(principal.map(str::to_owned)),
        skip_empty: true,
    });
    Ok(Answer { conversation: id, done: false, payload: answer.into_bytes() })
}

/// A client's second message: the token of whom it has named.
///
/// Errors: `AuthenticationFailed`.
pub fn go_on(request: &Request<'_>, principal: Option<&str>, payload: &[u8]) -> Result<()> {
    let refused = |why| refused(request, why);
    let token = message(payload).and_then(|message| text(message, "jwt")).map_err(refused)?;
    show(request, token.ok_or_else(|| refused("the message has no token"))?, principal)
}

/// A client shows a token, of this principal if it has named one before.
fn show(request: &Request<'_>, token: &str, principal: Option<&str>) -> Result<()> {
    let (user, by) = judge(request, token, principal).map_err(|why| refused(request, why))?;
    log_in(request, OIDC, &user, Some(Arc::new(by)))
}

fn judge(
    request: &Request<'_>,
    token: &str,
    principal: Option<&str>,
) -> std::result::Result<(UserName, ByToken), Refusal> {
    let front = request.front;
    let token: Token = token.parse()?;
    let providers = front.oidc.providers();
    let provider = providers.of(&token)?;
    let rest = Duration::from_secs(front.parameters.int("JWKSMinimumQuiescePeriodSecs").unsigned_abs());
    // The issuer may have to be asked.
    let key = give_way(true, || front.oidc.key(provider, token.key(), rest));
    let key = key.ok_or("the token names an unknown key")?;
    let (claims, until) = token.verify(&key, front.clock.now_millis())?;
    let identity = provider.identity(claims)?;
    if principal.is_some_and(|principal| principal != identity.principal) {
        return Err("the token is another principal's");
    }
    let provider = provider.clone();
    Ok((identity.user, ByToken { provider, key, until, roles: identity.roles, logged: identity.logged }))
}
