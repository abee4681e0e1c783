//! `$accumulator`, and how `mapReduce` reduces: accumulators in JavaScript.

use std::sync::{Arc, Mutex, PoisonError};

use sheaf_bson::{ArrayBuf, Bump, OwnedValue, RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Expr, ParseCx};
use sheaf_js::{Function, Sandbox};

use super::state::{Parsed, State, check_state_memory, copy_in, no_partial};

/// So many documents wait until they are accumulated together: a state goes to JavaScript and back only once for them.
const WAITING: usize = 500;

/// And at most so many bytes.
const WAITING_BYTES: usize = 1 << 20;

/// What a client has made an accumulator of.
struct Functions {
    init: Function,
    accumulate: Function,
    merge: Function,
    finalize: Option<Function>,
}

/// A group's state: what `init` gave, and all that came since.
struct Group {
    functions: Arc<Functions>,
    /// Behind a lock, since results are asked of what is shared.
    gathered: Mutex<Gathered>,
}

struct Gathered {
    state: OwnedValue,
    waiting: Vec<OwnedValue>,
    waiting_bytes: usize,
}

/// `{init, initArgs, accumulate, accumulateArgs, merge, finalize, lang}`.
pub(super) fn parse(_: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let Value::Document(spec) = argument else {
        bail!(4544703, "$accumulator expects an object as an argument; found: {}", argument.type_name());
    };
    let (mut init, mut accumulate, mut merge, mut finalize) = (None, None, None, None);
    let (mut init_args, mut accumulate_args) = (None, None);
    for element in spec.iter() {
        let value = element.value();
        match element.key() {
            "init" => init = Some(code("init", value, cx)?),
            "accumulate" => accumulate = Some(code("accumulate", value, cx)?),
            "merge" => merge = Some(code("merge", value, cx)?),
            "finalize" => finalize = Some(code("finalize", value, cx)?),
            "initArgs" => init_args = Some(Expr::parse(value, cx)?),
            "accumulateArgs" => accumulate_args = Some(Expr::parse(value, cx)?),
            "lang" => match value {
                Value::String("js") => {}
                Value::String(_) => bail!(4544705, "$accumulator only supports lang: 'js'"),
                _ => bail!(4544704, "$accumulator lang must be a string; found: {}", value.type_name()),
            },
            other => bail!(4544706, "$accumulator got an unexpected field: {other}"),
        }
    }
    let Some(init) = init else { bail!(4544707, "$accumulator missing required argument 'init'") };
    let Some(accumulate) = accumulate else {
        bail!(4544708, "$accumulator missing required argument 'accumulate'")
    };
    let Some(merge) = merge else { bail!(4544709, "$accumulator missing required argument 'merge'") };
    let Some(input) = accumulate_args else {
        bail!(4544710, "$accumulator missing required argument 'accumulateArgs'")
    };
    let sandbox = enabled_sandbox()?;
    let add = |code: &OwnedValue| sandbox.add(text(code.as_value()));
    let functions = Arc::new(Functions {
        init: add(&init)?,
        accumulate: add(&accumulate)?,
        merge: add(&merge)?,
        finalize: finalize.as_ref().map(add).transpose()?,
    });
    let init = init_args.unwrap_or_else(|| Expr::literal(Value::Array(RawDoc::EMPTY)));
    let make = move |args: Value<'_>| -> Result<Box<dyn State>> {
        let Value::Array(args) = args else {
            bail!(4544711, "$accumulator initArgs must evaluate to an array: {}", crate::print::value(args));
        };
        let args: Vec<_> = args.values().collect();
        let state = functions.init.call(RawDoc::EMPTY, &args)?;
        let gathered = Gathered { state, waiting: Vec::new(), waiting_bytes: 0 };
        Ok(Box::new(Group { functions: functions.clone(), gathered: Mutex::new(gathered) }))
    };
    Ok(Parsed { input, init: Some(init), make: Box::new(make) })
}

/// A sandbox, where the server has JavaScript.
fn enabled_sandbox() -> Result<Arc<Sandbox>> {
    if !sheaf_js::is_enabled() {
        bail!(31264, "Cannot run server-side javascript without the javascript engine enabled");
    }
    Sandbox::new()
}

/// The code of one of the functions, which must be known.
fn code(field: &str, value: Value<'_>, cx: &mut ParseCx) -> Result<OwnedValue> {
    let parsed = Expr::parse(value, cx)?;
    match parsed.constant() {
        Some(code @ (Value::String(_) | Value::JavaScript(_))) => Ok(code.into()),
        Some(_) => bail!(4544702, "$accumulator '{field}' must be a String or Code"),
        None => bail!(4544701, "$accumulator '{field}' must be a constant expression"),
    }
}

fn text(code: Value<'_>) -> &str {
    match code {
        Value::String(text) | Value::JavaScript(text) => text,
        _ => unreachable!("the parser took code only"),
    }
}

impl Group {
    /// What has been gathered, with nothing waiting.
    fn settled<T>(&self, then: impl FnOnce(&mut Gathered) -> Result<T>) -> Result<T> {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        if !gathered.waiting.is_empty() {
            gathered.state = self.functions.accumulate.fold(gathered.state.as_value(), &gathered.waiting)?;
            gathered.waiting.clear();
            gathered.waiting_bytes = 0;
        }
        then(&mut gathered)
    }
}

impl State for Group {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        let Value::Array(_) = value else {
            bail!(
                4544712,
                "$accumulator accumulateArgs must evaluate to an array: {}",
                crate::print::value(value)
            );
        };
        let gathered = self.gathered.get_mut().unwrap_or_else(PoisonError::into_inner);
        let args = OwnedValue::from(value);
        gathered.waiting_bytes += args.memory_bytes();
        gathered.waiting.push(args);
        if gathered.waiting.len() >= WAITING || gathered.waiting_bytes >= WAITING_BYTES {
            self.settled(|gathered| check_state_memory("$accumulator", gathered.state.memory_bytes()))?;
        }
        Ok(())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.settled(|gathered| match &self.functions.finalize {
            Some(finalize) => {
                let value = finalize.call(RawDoc::EMPTY, &[gathered.state.as_value()])?;
                Ok(copy_in(&value, arena))
            }
            None => Ok(copy_in(&gathered.state, arena)),
        })
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.settled(|gathered| Ok(copy_in(&gathered.state, arena)))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        self.settled(|gathered| {
            let args = [gathered.state.as_value(), partial];
            gathered.state = self.functions.merge.call(RawDoc::EMPTY, &args)?;
            Ok(())
        })
    }

    fn memory_bytes(&self) -> usize {
        let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.state.memory_bytes() + gathered.waiting_bytes
    }
}

/// The values of one key of a `mapReduce`.
struct Reduction {
    reduce: Arc<Function>,
    /// Behind a lock, since results are asked of what is shared.
    values: Mutex<Values>,
}

#[derive(Default)]
struct Values {
    key: Option<OwnedValue>,
    values: Vec<OwnedValue>,
    bytes: usize,
}

/// `{eval: code, data: {k, v}}`.
pub(super) fn parse_reduce(_: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let Value::Document(spec) = argument else {
        bail!(31326, "$_internalJsReduce requires a document argument, but found {}", argument.type_name());
    };
    let Some(code @ (Value::String(_) | Value::JavaScript(_))) = spec.get("eval") else {
        bail!(31243, "$_internalJsReduce requires an 'eval' argument");
    };
    let Some(data) = spec.get("data") else { bail!(31349, "$_internalJsReduce requires a 'data' argument") };
    let input = Expr::parse(data, cx)?;
    let sandbox = enabled_sandbox()?;
    if let Some(Value::Document(scope)) = spec.get("_internalScope") {
        scope.iter().try_for_each(|variable| sandbox.set_global(variable.key(), variable.value()))?;
    }
    let reduce = Arc::new(sandbox.add(text(code))?);
    let make = move |_: Value<'_>| -> Result<Box<dyn State>> {
        Ok(Box::new(Reduction { reduce: reduce.clone(), values: Mutex::default() }))
    };
    Ok(Parsed { input, init: None, make: Box::new(make) })
}

impl Reduction {
    /// The one value that all are reduced to; a value by itself is not.
    fn reduced(&self) -> Result<Option<(OwnedValue, OwnedValue)>> {
        let mut all = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(key) = all.key.clone() else { return Ok(None) };
        if all.values.len() > 1 {
            let values = ArrayBuf::of(all.values.iter().map(OwnedValue::as_value));
            let args = [key.as_value(), Value::Array(values.as_raw())];
            let value = self.reduce.call(RawDoc::EMPTY, &args)?;
            all.bytes = value.memory_bytes();
            all.values = vec![value];
        }
        Ok(all.values.first().map(|value| (key, value.clone())))
    }
}

impl State for Reduction {
    fn add(&mut self, pair: Value<'_>) -> Result<()> {
        let Value::Document(pair) = pair else {
            bail!(
                31251,
                "$_internalJsReduce requires that the values are documents: {}",
                crate::print::value(pair)
            );
        };
        let all = self.values.get_mut().unwrap_or_else(PoisonError::into_inner);
        if all.key.is_none() {
            all.key = Some(OwnedValue::from(pair.get("k").unwrap_or(Value::Null)));
        }
        let value = OwnedValue::from(pair.get("v").unwrap_or(Value::Undefined));
        all.bytes += value.memory_bytes();
        all.values.push(value);
        if all.values.len() >= WAITING || all.bytes >= WAITING_BYTES {
            let reduced = self.reduced()?;
            check_state_memory("$_internalJsReduce", reduced.map_or(0, |(_, value)| value.memory_bytes()))?;
        }
        Ok(())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.reduced()?.map_or(Value::Null, |(_, value)| copy_in(&value, arena)))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.reduced()?.map_or(Value::Missing, |(key, value)| {
            Value::Document(sheaf_bson::document_in(arena, |out| {
                out.append("k", key.as_value()).append("v", value.as_value());
            }))
        }))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        match partial {
            Value::Missing => Ok(()),
            Value::Document(_) => self.add(partial),
            other => no_partial("$_internalJsReduce", other),
        }
    }

    fn memory_bytes(&self) -> usize {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}
