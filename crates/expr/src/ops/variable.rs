//! `$let`, `$literal`, and the operators that run an expression over an array: `$map`, `$filter`, `$reduce`.

use sheaf_bson::{Bump, OwnedValue, Value, document_in};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::Held;

use super::{build_array, grown};
use crate::context::{ParseCx, Slot};
use crate::env::size_of_value;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Operator, State, custom};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$let", parse_let, eval_let).serialized(serialize_let),
    custom("$literal", parse_literal, never),
    custom("$const", parse_literal, never),
    custom("$expr", parse_parenthesis, never),
    custom("$map", parse_map, map).serialized(|call, arena| serialize_loop(call, &["input", "in"], arena)),
    custom("$filter", parse_filter, filter)
        .serialized(|call, arena| serialize_loop(call, &["input", "cond", "limit"], arena)),
    custom("$reduce", parse_reduce, reduce)
        .serialized(|call, arena| serialize_fields(call, &["input", "initialValue", "in"], None, arena)),
];

fn parse_literal(_: &'static Operator, argument: Value<'_>, _: &mut ParseCx) -> Result<Expr> {
    crate::parse::check_literal(argument)?;
    Ok(Expr::literal(argument))
}

/// `{$expr: e}` is `e`: a filter's `$expr` may be written around its parts too.
fn parse_parenthesis(_: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    Expr::parse(argument, cx)
}

/// For operators that parse to something else than a call.
fn never<'a>(call: &'a Call, _: Cx<'a, '_>) -> Result<Value<'a>> {
    Err(Error::new(Code::INTERNAL_ERROR, format!("{} is never evaluated", call.op.name)))
}

/// Arguments: the variables' values, then `in`.
fn parse_let(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::Document(doc) = argument else {
        bail!(16874, "$let only supports an object as its argument");
    };
    let (mut vars, mut inner) = (None, None);
    for element in doc.iter() {
        match element.key() {
            "vars" => vars = Some(element.value()),
            "in" => inner = Some(element.value()),
            other => bail!(16875, "Unrecognized parameter to $let: {other}"),
        }
    }
    let Some(vars) = vars else { bail!(16876, "Missing 'vars' parameter to $let") };
    let Some(inner) = inner else { bail!(16877, "Missing 'in' parameter to $let") };
    // An array passes for an object here, and fails by the names of its elements.
    let (Value::Document(vars) | Value::Array(vars)) = vars else {
        bail!(10065, "invalid parameter: expected an object (vars)");
    };
    let mut args = Vec::new();
    for element in vars.iter() {
        crate::context::validate_variable_name(element.key())?;
        args.push(Expr::parse(element.value(), cx)?);
    }
    let scope = cx.enter();
    let slots = vars
        .iter()
        .map(|element| Ok((element.key().into(), cx.declare(element.key())?)))
        .collect::<Result<Vec<_>>>()?;
    args.push(Expr::parse(inner, cx)?);
    cx.leave(scope);
    Ok(Expr::call(op, args, State::Variables(slots.into()), cx))
}

fn eval_let<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let slots = call.slots();
    for ((_, slot), arg) in slots.iter().zip(&call.args) {
        cx.env.set(*slot, arg.value(cx)?);
    }
    call.arg(slots.len(), cx)
}

fn serialize_let<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        let vars = document_in(arena, |vars| {
            for ((name, _), arg) in call.slots().iter().zip(&call.args) {
                vars.append(name, arg.serialize(arena));
            }
        });
        out.append("vars", vars);
        out.append("in", call.args[call.slots().len()].serialize(arena));
    }))
}

/// The fields of an object argument as they come, with the checks that `$map`, `$filter` and `$reduce` share.
fn fields<'v, const N: usize>(
    argument: Value<'v>,
    names: [&str; N],
    not_object: impl FnOnce() -> Error,
    unknown: impl FnOnce(&str) -> Error,
) -> Result<[Option<Value<'v>>; N]> {
    let Value::Document(doc) = argument else { return Err(not_object()) };
    let mut found = [None; N];
    for element in doc.iter() {
        match names.iter().position(|name| *name == element.key()) {
            Some(at) => found[at] = Some(element.value()),
            None => return Err(unknown(element.key())),
        }
    }
    Ok(found)
}

fn simple_fields<'v, const N: usize>(
    op: &Operator,
    argument: Value<'v>,
    names: [&str; N],
    not_object: i32,
    unknown: i32,
) -> Result<[Option<Value<'v>>; N]> {
    fields(
        argument,
        names,
        || Error::location(not_object, format!("{} only supports an object as its argument", op.name)),
        |name| Error::location(unknown, format!("Unrecognized parameter to {}: {name}", op.name)),
    )
}

/// The name that `as` gives to the loop variable.
fn loop_name(given: Option<Value<'_>>) -> &str {
    match given {
        None => "this",
        // What is no string is read as an empty name, and refused as such.
        Some(other) => other.as_str().unwrap_or(""),
    }
}

/// Parses `body` with a loop variable in scope.
fn with_variable(name: &str, body: Value<'_>, cx: &mut ParseCx) -> Result<(Slot, Expr)> {
    let scope = cx.enter();
    let slot = cx.declare(name)?;
    let body = Expr::parse(body, cx)?;
    cx.leave(scope);
    Ok((slot, body))
}

fn parse_map(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let [input, name, body] = simple_fields(op, argument, ["input", "as", "in"], 16878, 16879)?;
    let Some(input) = input else { bail!(16880, "Missing 'input' parameter to $map") };
    let Some(body) = body else { bail!(16882, "Missing 'in' parameter to $map") };
    let input = Expr::parse(input, cx)?;
    let name = loop_name(name);
    let (slot, body) = with_variable(name, body, cx)?;
    let variables = State::Variables(Box::new([(name.into(), slot)]));
    Ok(Expr::unfolded(op, vec![input, body], variables))
}

fn map<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let input = match call.arg(0, cx)? {
        Value::Array(array) => array,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(16883, "input to $map must be an array not {}", other.type_name()),
    };
    let slot = call.slot(0);
    build_array(cx, |out| {
        for item in input.values() {
            cx.env.set(slot, item);
            out.push(call.arg(1, cx)?);
            grown(cx, out.size())?;
        }
        Ok(())
    })
}

fn parse_filter(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let [input, name, cond, limit] =
        simple_fields(op, argument, ["input", "as", "cond", "limit"], 28646, 28647)?;
    let Some(input) = input else { bail!(28648, "Missing 'input' parameter to $filter") };
    let Some(cond) = cond else { bail!(28650, "Missing 'cond' parameter to $filter") };
    let input = Expr::parse(input, cx)?;
    let name = loop_name(name);
    let (slot, cond) = with_variable(name, cond, cx)?;
    let limit = limit.map_or(Ok(Expr::absent()), |limit| Expr::parse(limit, cx))?;
    let variables = State::Variables(Box::new([(name.into(), slot)]));
    Ok(Expr::unfolded(op, vec![input, cond, limit], variables))
}

fn filter<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let input = match call.arg(0, cx)? {
        Value::Array(array) => array,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(28651, "input to $filter must be an array not {}", other.type_name()),
    };
    // Of nothing nothing is taken, whatever the limit.
    if input.is_empty() {
        return Ok(Value::Array(input));
    }
    let mut left = match call.arg(2, cx)? {
        value if value.is_nullish() => usize::MAX,
        value => match value.as_exact_i64().and_then(|n| i32::try_from(n).ok()) {
            Some(n) if n > 0 => n as usize,
            Some(n) => bail!(327392, "$filter: limit must be greater than 0: {n}"),
            None => bail!(
                327391,
                "$filter: limit must be represented as a 32-bit integral value: {}",
                super::show(value)
            ),
        },
    };
    let slot = call.slot(0);
    build_array(cx, |out| {
        for item in input.iter() {
            cx.env.set(slot, item.value());
            grown(cx, out.size())?;
            if call.arg(1, cx)?.truthy() {
                out.push_element(item);
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        Ok(())
    })
}

fn parse_reduce(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let [input, initial, body] = fields(
        argument,
        ["input", "initialValue", "in"],
        || {
            Error::location(
                40075,
                format!("$reduce requires an object as an argument, found: {}", argument.type_name()),
            )
        },
        |name| Error::location(40076, format!("$reduce found an unknown argument: {name}")),
    )?;
    let Some(input) = input else { bail!(40077, "$reduce requires 'input' to be specified") };
    let Some(initial) = initial else { bail!(40078, "$reduce requires 'initialValue' to be specified") };
    let Some(body) = body else { bail!(40079, "$reduce requires 'in' to be specified") };
    let input = Expr::parse(input, cx)?;
    let initial = Expr::parse(initial, cx)?;
    let scope = cx.enter();
    let this = cx.declare("this")?;
    let value = cx.declare("value")?;
    let body = Expr::parse(body, cx)?;
    cx.leave(scope);
    let variables = State::Variables(Box::new([("this".into(), this), ("value".into(), value)]));
    Ok(Expr::unfolded(op, vec![input, initial, body], variables))
}

fn reduce<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let input = match call.arg(0, cx)? {
        Value::Array(array) => array,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(40080, "$reduce requires that 'input' be an array, found: {}", super::show(other)),
    };
    let (this, value) = (call.slot(0), call.slot(1));
    let before = cx.env.arena().allocated_bytes();
    let mut accumulated = call.arg(1, cx)?;
    let mut items = input.values().enumerate();
    while let Some((step, item)) = items.next() {
        cx.env.set(this, item);
        cx.env.set(value, accumulated);
        accumulated = call.arg(2, cx)?;
        cx.env.spend_for(size_of_value(accumulated))?;
        check_nesting_now_and_then(step, accumulated)?;
        if cx.env.arena().allocated_bytes() - before > REDUCE_LEAVINGS {
            return reduce_in_scratch(call, cx, items, accumulated);
        }
    }
    super::check_nesting(accumulated)?;
    Ok(accumulated)
}

/// A step nests by few levels (what nests by more is checked where it is made), and looking through a large value at
/// each would cost as much as the step itself.
fn check_nesting_now_and_then(step: usize, value: Value<'_>) -> Result<()> {
    if step % 4 == 3 { super::check_nesting(value) } else { Ok(()) }
}

/// Bytes of intermediate values that `$reduce` leaves in the arena before it turns to one of its own.
const REDUCE_LEAVINGS: usize = 1 << 20;

/// Goes on reducing with intermediate values thrown away step by step: a growing array, copied at each step,
/// would otherwise fill the arena with the square of its size.
fn reduce_in_scratch<'a>(
    call: &'a Call,
    cx: Cx<'a, '_>,
    items: impl Iterator<Item = (usize, Value<'a>)>,
    accumulated: Value<'a>,
) -> Result<Value<'a>> {
    let (this, value) = (call.slot(0), call.slot(1));
    let mut scratch = Bump::new();
    let mut kept = OwnedValue::from(accumulated);
    let mut held: Option<Held> = None;
    for (step, item) in items {
        let next = {
            let env = cx.env.with_arena(&scratch);
            env.set(this, item);
            env.set(value, kept.as_value());
            let next = call.args[2].eval(cx.root, &env)?;
            // It is looked through, and copied twice.
            env.spend_for(3 * size_of_value(next))?;
            check_nesting_now_and_then(step, next)?;
            let size = size_of_value(next);
            if size >= REDUCE_LEAVINGS || held.is_some() {
                // The next one is made before this one goes.
                let bytes = (size + size_of_value(kept.as_value())) as u64;
                match &mut held {
                    Some(held) => held.set(bytes)?,
                    none => *none = Some(sheaf_meter::reserve(bytes)?),
                }
            }
            OwnedValue::from(next)
        };
        kept = next;
        scratch.reset();
    }
    super::check_nesting(kept.as_value())?;
    Ok(super::copy_in(kept.as_value(), cx))
}

fn serialize_loop<'a>(call: &'a Call, names: &[&str], arena: &'a Bump) -> Value<'a> {
    serialize_fields(call, names, call.slots().first().map(|(name, _)| &**name), arena)
}

/// Arguments under their names, with `as` behind the first.
fn serialize_fields<'a>(
    call: &'a Call,
    names: &[&str],
    loop_name: Option<&str>,
    arena: &'a Bump,
) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        for (at, (name, arg)) in names.iter().zip(&call.args).enumerate() {
            if !arg.is_absent() {
                out.append(name, arg.serialize(arena));
            }
            if let (0, Some(loop_name)) = (at, loop_name) {
                out.append("as", loop_name);
            }
        }
    }))
}
