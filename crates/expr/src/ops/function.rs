//! `$function`, and what `mapReduce` is made of: clients' JavaScript as expressions.

use std::sync::Arc;

use sheaf_bson::{Bump, OwnedValue, RawDoc, Value, document_in};
use sheaf_errors::{Error, Result, bail};
use sheaf_js::{Function, Sandbox};

use super::{array_of, copy_in, show};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Operator, State, custom};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$function", parse_function, call_function).impure().serialized(serialize_function),
    custom("$_internalJsEmit", parse_emit, emit).impure().serialized(serialize_emit),
];

/// A client's function, as an operator keeps it.
pub(crate) struct Compiled {
    code: OwnedValue,
    sandbox: Arc<Sandbox>,
    function: Function,
    /// Global variables, of `mapReduce`.
    scope: Option<OwnedValue>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Compiled").field(&self.code.as_value()).finish()
    }
}

impl Compiled {
    fn new(
        code: Value<'_>,
        scope: Option<Value<'_>>,
        sandbox: fn() -> Result<Arc<Sandbox>>,
    ) -> Result<Compiled> {
        if !sheaf_js::is_enabled() {
            bail!(31264, "Cannot run server-side javascript without the javascript engine enabled");
        }
        let text = match code {
            Value::String(text) | Value::JavaScript(text) => text,
            _ => unreachable!("its type has been looked at"),
        };
        let sandbox = sandbox()?;
        if let Some(Value::Document(scope)) = scope {
            scope.iter().try_for_each(|variable| sandbox.set_global(variable.key(), variable.value()))?;
        }
        let function = sandbox.add(text)?;
        Ok(Compiled { code: code.into(), sandbox, function, scope: scope.map(OwnedValue::from) })
    }
}

/// Arguments: `args`.
fn parse_function(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    if cx.is_validator() {
        bail!(4660800, "$function cannot be used inside a validator.");
    }
    let Value::Document(spec) = argument else {
        bail!(31260, "$function requires an object as an argument, found: {}", argument.type_name());
    };
    let Some(body) = spec.get("body") else { bail!(31261, "The body function must be specified.") };
    let body = constant_code(body, cx)?;
    let Some(args) = spec.get("args") else { bail!(31263, "The args field must be specified.") };
    let args = Expr::parse(args, cx)?;
    let Some(lang) = spec.get("lang") else { bail!(31418, "The lang field must be specified.") };
    if !matches!(lang, Value::String("js")) {
        bail!(31419, "Currently the only supported language specifier is 'js'.");
    }
    let compiled = Compiled::new(body.as_value(), spec.get("_internalScope"), Sandbox::new)?;
    Ok(Expr::unfolded(op, vec![args], State::Function(Box::new(compiled))))
}

/// The code of a function, which must be known.
fn constant_code(code: Value<'_>, cx: &mut ParseCx) -> Result<OwnedValue> {
    let parsed = Expr::parse(code, cx)?;
    let Some(code) = parsed.constant() else {
        bail!(31432, "The body function must be a constant expression")
    };
    if !matches!(code, Value::String(_) | Value::JavaScript(_)) {
        bail!(31262, "The body function must evaluate to type string or code");
    }
    Ok(code.into())
}

fn call_function<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let State::Function(compiled) = &call.state else { return Err(no_function()) };
    let Value::Array(args) = call.arg(0, cx)? else { bail!(31266, "The args field must be of type array") };
    let args: Vec<_> = args.values().collect();
    let value = compiled.function.call(RawDoc::EMPTY, &args)?;
    Ok(copy_in(value.as_value(), cx))
}

fn serialize_function<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    let State::Function(compiled) = &call.state else { return Value::Missing };
    Value::Document(document_in(arena, |out| {
        out.append("body", compiled.code.as_value());
        out.append("args", call.args[0].serialize(arena));
        out.append("lang", "js");
        if let Some(scope) = &compiled.scope {
            out.append("_internalScope", scope.as_value());
        }
    }))
}

/// Arguments: `this`.
fn parse_emit(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::Document(spec) = argument else {
        bail!(31221, "$_internalJsEmit requires an object as an argument, found: {}", argument.type_name());
    };
    let Some(eval) = spec.get("eval") else { bail!(31222, "The map function must be specified.") };
    if !matches!(eval, Value::String(_) | Value::JavaScript(_)) {
        bail!(31224, "The map function must be of type string or code");
    }
    let Some(this) = spec.get("this") else { bail!(31223, "Must specify 'this' parameter.") };
    let this = Expr::parse(this, cx)?;
    let compiled = Compiled::new(eval, spec.get("_internalScope"), Sandbox::of_map)?;
    Ok(Expr::unfolded(op, vec![this], State::Function(Box::new(compiled))))
}

/// The array of `{k, v}` that the function has emitted.
fn emit<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let State::Function(compiled) = &call.state else { return Err(no_function()) };
    let this = call.arg(0, cx)?;
    let Value::Document(this) = this else { bail!(31225, "'this' must be an object, found: {}", show(this)) };
    compiled.function.call(this, &[])?;
    let emitted = compiled.sandbox.take_emitted();
    cx.env.expect(emitted.bytes())?;
    let pairs = emitted.iter().map(|(key, value)| {
        Value::Document(document_in(cx.env.arena(), |out| {
            // A key that is not there is null, so that it makes a group.
            let key = key.as_value();
            out.append("k", if matches!(key, Value::Undefined) { Value::Null } else { key });
            out.append("v", value.as_value());
        }))
    });
    array_of(pairs, cx)
}

fn serialize_emit<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    let State::Function(compiled) = &call.state else { return Value::Missing };
    Value::Document(document_in(arena, |out| {
        out.append("eval", compiled.code.as_value());
        out.append("this", call.args[0].serialize(arena));
        if let Some(scope) = &compiled.scope {
            out.append("_internalScope", scope.as_value());
        }
    }))
}

fn no_function() -> Error {
    unreachable!("the parser of this operator makes a function")
}
