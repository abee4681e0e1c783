//! A runtime with the functions of one filter, expression or command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use md5::{Digest, Md5};
use parking_lot::Mutex;
use rquickjs::context::EvalOptions;
use rquickjs::function::Args;
use rquickjs::object::Property;
use rquickjs::{
    CaughtError, Coerced, Context, Ctx, Error as EngineError, Function as JsFunction, Object, Runtime,
    Value as Js,
};
use sheaf_bson::{CodeWithScope, Decimal128, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::Held;

use crate::MAX_HEAP_BYTES;
use crate::brief::{SMALL_BYTES, is_brief};
use crate::emitted::Emitted;
use crate::from_js::{Failure, FromJs};
use crate::places::{Heap, may_grow};
use crate::source::{forms, is_function};
use crate::to_js::ToJs;
use crate::worker;

/// What a sandbox may have at first; most never need more.
const FIRST_HEAP_BYTES: usize = 8 << 20;

/// Frames of functions that call themselves; threads have more than that left.
const STACK_BYTES: usize = 256 << 10;

/// A year.
const LONGEST_SLEEP_SECONDS: f64 = 365.0 * 86_400.0;

const PRELUDE: &str = include_str!("prelude.js");

/// The place of what the prelude gives us among a sandbox's globals.
const OWN: &str = "$sandbox";

/// A runtime of its own for a client's functions.
pub struct Sandbox {
    /// `None` when a function was left behind with it: then the operation has to end.
    engine: Mutex<Option<Engine>>,
    shared: Arc<Shared>,
}

/// What the engine's callbacks and its callers both see.
#[derive(Default)]
struct Shared {
    /// Why the meter had the function end.
    stopped: Mutex<Option<Error>>,
    emitted: Mutex<Emitted>,
    /// Whether code has been added that is not [brief](is_brief): it may have changed what others use.
    may_take_long: AtomicBool,
}

struct Engine {
    context: Context,
    runtime: Runtime,
    /// What the heap may have.
    heap: Arc<Heap>,
    /// The operation's account pays for the heap.
    held: Held,
    calls: u32,
    functions: usize,
}

impl Engine {
    /// Four times the memory for another attempt.
    ///
    /// Errors: `ExceededMemoryLimit`; `JSInterpreterFailure` if it has all that it may have.
    fn grow(&mut self) -> Result<()> {
        let more = self.heap.bytes() * 4;
        if more > MAX_HEAP_BYTES {
            return Err(failure("InternalError: out of memory".to_owned()));
        }
        may_grow(&self.heap, more)?;
        self.held.set(more as u64)?;
        self.heap.set(more);
        self.runtime.set_memory_limit(more);
        Ok(())
    }
}

/// How an attempt ended that gave nothing.
enum Ended {
    /// It needs more memory than it has.
    OutOfMemory,
    Failed(Error),
}

impl Sandbox {
    /// A sandbox without functions.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn new() -> Result<Arc<Sandbox>> {
        Sandbox::make(false)
    }

    /// A sandbox whose functions may `emit`.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn of_map() -> Result<Arc<Sandbox>> {
        Sandbox::make(true)
    }

    fn make(may_emit: bool) -> Result<Arc<Sandbox>> {
        let held = sheaf_meter::reserve(FIRST_HEAP_BYTES as u64)?;
        let emitted = Mutex::new(Emitted::new(sheaf_meter::reserve(0)?));
        let shared = Arc::new(Shared { emitted, ..Shared::default() });
        let runtime = Runtime::new().map_err(no_engine)?;
        runtime.set_memory_limit(FIRST_HEAP_BYTES);
        runtime.set_max_stack_size(STACK_BYTES);
        let watch = shared.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || {
            let mut stopped = watch.stopped.lock();
            if stopped.is_none() {
                *stopped = sheaf_meter::check().err();
            }
            stopped.is_some()
        })));
        let context = Context::full(&runtime).map_err(no_engine)?;
        // Where the operation's time ends meanwhile, that is why there is none.
        let ended = |error| shared.stopped.lock().take().unwrap_or_else(|| no_engine(error));
        context.with(|ctx| furnish(&ctx, &shared, may_emit)).map_err(ended)?;
        let heap = Heap::new(FIRST_HEAP_BYTES, held.account().cloned());
        let engine = Engine { context, runtime, heap, held, calls: 0, functions: 0 };
        Ok(Arc::new(Sandbox { engine: Mutex::new(Some(engine)), shared }))
    }

    /// Adds a client's code.
    ///
    /// Errors: `JSInterpreterFailure` for what is no JavaScript; those of a function that is called.
    pub fn add(self: &Arc<Self>, code: &str) -> Result<Function> {
        let [function, expression, statements] = forms(code);
        let mut tries = vec![expression, statements];
        if is_function(code) {
            tries.insert(0, function);
        }
        if !is_brief(code) {
            self.shared.may_take_long.store(true, Ordering::Relaxed);
        }
        let at = self.with_engine(0, move |engine, shared| {
            let at = engine.functions;
            engine.context.with(|ctx| {
                let functions: Object<'_> = own(&ctx)
                    .and_then(|own| own.get("functions"))
                    .map_err(|error| shared.ended(&ctx, error))?;
                let mut refused = None;
                for source in &tries {
                    let mut options = EvalOptions::default();
                    options.strict = false;
                    match ctx.eval_with_options::<Js<'_>, _>(source.as_str(), options) {
                        Ok(made) if made.is_function() => {
                            return functions.set(at as u32, made).map_err(|error| shared.ended(&ctx, error));
                        }
                        Ok(_) => {}
                        Err(error) => match shared.ended(&ctx, error) {
                            Ended::OutOfMemory => return Err(Ended::OutOfMemory),
                            Ended::Failed(error) => refused = Some(error),
                        },
                    }
                }
                Err(Ended::Failed(refused.unwrap_or_else(|| failure("the code is no function".to_owned()))))
            })?;
            engine.functions += 1;
            Ok(at)
        })?;
        Ok(Function { sandbox: self.clone(), at })
    }

    /// Sets a global variable. Code that is a function can be called by its name.
    ///
    /// Errors: `ExceededMemoryLimit`; `JSInterpreterFailure` for code that is no JavaScript.
    pub fn set_global(&self, name: &str, value: Value<'_>) -> Result<()> {
        let name = name.to_owned();
        if let Value::JavaScript(code) | Value::CodeWithScope(CodeWithScope { code, .. }) = value
            && is_function(code)
        {
            self.shared.may_take_long.store(true, Ordering::Relaxed);
            let [source, ..] = forms(code);
            return self.with_engine(0, move |engine, shared| {
                engine.context.with(|ctx| {
                    let mut options = EvalOptions::default();
                    options.strict = false;
                    let made = ctx.eval_with_options::<Js<'_>, _>(source.as_str(), options);
                    made.and_then(|made| ctx.globals().set(name.as_str(), made))
                        .map_err(|error| shared.ended(&ctx, error))
                })
            });
        }
        let value = OwnedValue::from(value);
        self.with_engine(value.memory_bytes(), move |engine, shared| {
            engine.context.with(|ctx| {
                let set = || {
                    let makers = own(&ctx)?;
                    let mut to = ToJs { ctx: &ctx, makers: &makers, sources: None, call: 0 };
                    ctx.globals().set(name.as_str(), to.value(value.as_value())?)
                };
                set().map_err(|error| shared.ended(&ctx, error))
            })
        })
    }

    /// Takes what `emit` was called with since the last time.
    pub fn take_emitted(&self) -> Emitted {
        self.shared.emitted.lock().take()
    }

    /// Runs what runs clients' code on so many bytes: where the operation can leave it behind, unless it is done in a moment.
    fn with_engine<T: Send + 'static>(
        &self,
        bytes: usize,
        attempt: impl Fn(&mut Engine, &Shared) -> std::result::Result<T, Ended> + Send + 'static,
    ) -> Result<T> {
        let mut place = self.engine.lock();
        if let Some(engine) = &mut *place
            && bytes <= SMALL_BYTES
            && !self.shared.may_take_long.load(Ordering::Relaxed)
        {
            return self.shared.until_it_fits(engine, attempt);
        }
        let Some(mut engine) = place.take() else {
            sheaf_meter::check()?;
            return Err(failure("the JavaScript engine is still at work for an earlier call".to_owned()));
        };
        let shared = self.shared.clone();
        let heap = engine.heap.clone();
        let (engine, outcome) = worker::run(&heap, move || {
            let outcome = shared.until_it_fits(&mut engine, attempt);
            (engine, outcome)
        })?;
        *place = Some(engine);
        outcome
    }
}

impl Shared {
    /// Tries with more and more memory.
    fn until_it_fits<T>(
        &self,
        engine: &mut Engine,
        attempt: impl Fn(&mut Engine, &Shared) -> std::result::Result<T, Ended>,
    ) -> Result<T> {
        let emitted = self.emitted.lock().len();
        loop {
            let outcome = self.finished(attempt(engine, self));
            if outcome.is_err() {
                self.emitted.lock().truncate(emitted);
            }
            match outcome {
                Ok(value) => return Ok(value),
                Err(Ended::Failed(error)) => return Err(error),
                Err(Ended::OutOfMemory) => engine.grow()?,
            }
        }
    }

    /// Who has caught what he was to end with has ended nevertheless.
    fn finished<T>(&self, outcome: std::result::Result<T, Ended>) -> std::result::Result<T, Ended> {
        let value = outcome?;
        self.stopped.lock().take().map_or(Ok(value), |error| Err(Ended::Failed(error)))
    }

    /// Has the function end with this error, whether it catches what is thrown or not.
    fn stop(&self, ctx: &Ctx<'_>, error: Error) -> EngineError {
        let thrown = rquickjs::Exception::throw_message(ctx, error.message());
        *self.stopped.lock() = Some(error);
        thrown
    }

    fn failed(&self, ctx: &Ctx<'_>, failure: Failure) -> Ended {
        match failure {
            Failure::Engine(error) => self.ended(ctx, error),
            Failure::Client(error) => Ended::Failed(error),
        }
    }

    /// What an error of the engine means.
    fn ended(&self, ctx: &Ctx<'_>, error: EngineError) -> Ended {
        if let Some(error) = self.stopped.lock().take() {
            ctx.catch();
            return Ended::Failed(error);
        }
        if matches!(error, EngineError::Allocation) {
            return Ended::OutOfMemory;
        }
        let text = match CaughtError::from_error(ctx, error) {
            CaughtError::Error(error) => error.to_string(),
            CaughtError::Exception(exception) => {
                let message = exception.message().unwrap_or_default();
                if message == "out of memory" {
                    return Ended::OutOfMemory;
                }
                let name: String = exception.get("name").unwrap_or_else(|_| "Error".to_owned());
                format!("{name}: {message} :\n{}", exception.stack().unwrap_or_default())
            }
            CaughtError::Value(value) if value.is_null() => return Ended::OutOfMemory,
            CaughtError::Value(value) => {
                let json =
                    ctx.json_stringify(value.clone()).ok().flatten().and_then(|text| text.to_string().ok());
                if json.is_none() {
                    // JSON has no big integers and symbols, and its writing may throw as well.
                    ctx.catch();
                }
                let shown = json.or_else(|| value.get::<Coerced<String>>().ok().map(|text| text.0));
                if shown.is_none() {
                    ctx.catch();
                }
                format!("uncaught exception: {}", shown.unwrap_or_default())
            }
        };
        Ended::Failed(failure(text))
    }
}

/// A client's function in its sandbox.
pub struct Function {
    sandbox: Arc<Sandbox>,
    at: usize,
}

/// A function with the code that it was made of.
pub struct Script {
    /// The client's code.
    pub code: Box<str>,
    function: Function,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Script").field(&self.code).finish()
    }
}

impl std::ops::Deref for Script {
    type Target = Function;

    fn deref(&self) -> &Function {
        &self.function
    }
}

impl Script {
    /// The code in a sandbox of its own.
    ///
    /// Errors: those of [`Sandbox::new`] and [`Sandbox::add`].
    pub fn new(code: &str) -> Result<Script> {
        Script::with_globals(code, RawDoc::EMPTY)
    }

    /// The same with global variables.
    ///
    /// Errors: those of [`Script::new`] and [`Sandbox::set_global`].
    pub fn with_globals(code: &str, globals: RawDoc<'_>) -> Result<Script> {
        let sandbox = Sandbox::new()?;
        globals.iter().try_for_each(|variable| sandbox.set_global(variable.key(), variable.value()))?;
        Ok(Script { code: code.into(), function: sandbox.add(code)? })
    }
}

impl Function {
    /// Calls the function; `this` is an empty document where there is none.
    ///
    /// Errors: `JSInterpreterFailure` for what it throws; what the meter says; `ExceededMemoryLimit`.
    pub fn call(&self, this: RawDoc<'_>, args: &[Value<'_>]) -> Result<OwnedValue> {
        self.run(this, args, true, |from, value| from.owned(&value))
    }

    /// Calls the function for each list of arguments, behind what the call before it gave: first `state`. What stands
    /// between them stays JavaScript's.
    ///
    /// Errors: those of [`Function::call`].
    pub fn fold(&self, state: Value<'_>, calls: &[OwnedValue]) -> Result<OwnedValue> {
        let (first, calls, at) = (OwnedValue::from(state), calls.to_vec(), self.at);
        let bytes = calls.iter().map(OwnedValue::memory_bytes).sum::<usize>() + first.memory_bytes();
        self.sandbox.with_engine(bytes, move |engine, shared| {
            engine.calls = engine.calls.wrapping_add(1);
            let call = engine.calls;
            engine.context.with(|ctx| {
                let mut sources = Vec::new();
                let mut attempt = || -> std::result::Result<OwnedValue, Failure> {
                    let makers = own(&ctx)?;
                    let function: JsFunction<'_> =
                        makers.get::<_, Object<'_>>("functions")?.get(at as u32)?;
                    let mut to = ToJs { ctx: &ctx, makers: &makers, sources: Some(&mut sources), call };
                    let mut state = to.value(first.as_value())?;
                    for args in &calls {
                        sheaf_meter::tick(20)?;
                        let args = args.as_value().as_array().unwrap_or(RawDoc::EMPTY);
                        let mut list = Args::new_unsized(ctx.clone());
                        list.push_arg(state)?;
                        for arg in args.values() {
                            list.push_arg(to.value(arg)?)?;
                        }
                        state = function.call_arg(list)?;
                    }
                    FromJs { makers: &makers, sources: &sources, call }.owned(&state)
                };
                attempt().map_err(|failure| shared.failed(&ctx, failure))
            })
        })
    }

    /// Whether the function says yes to a document, which is its `this` and its global `obj`.
    ///
    /// Errors: those of [`Function::call`].
    pub fn test(&self, doc: RawDoc<'_>) -> Result<bool> {
        self.run(doc, &[], false, |_, value| Ok(truthy(&value)))
    }

    fn run<T: Send + 'static>(
        &self,
        this: RawDoc<'_>,
        args: &[Value<'_>],
        hands_back: bool,
        finish: impl for<'s, 'js> Fn(&FromJs<'s, 'js, '_>, Js<'js>) -> std::result::Result<T, Failure>
        + Send
        + 'static,
    ) -> Result<T> {
        sheaf_meter::tick(20)?;
        let (this, at) = (DocBuf::from(this), self.at);
        let args: Vec<OwnedValue> = args.iter().map(|arg| OwnedValue::from(*arg)).collect();
        let bytes = this.as_bytes().len() + args.iter().map(OwnedValue::memory_bytes).sum::<usize>();
        self.sandbox.with_engine(bytes, move |engine, shared| {
            engine.calls = engine.calls.wrapping_add(1);
            let call = engine.calls;
            engine.context.with(|ctx| {
                let mut sources = Vec::new();
                let mut attempt = || -> std::result::Result<T, Failure> {
                    let makers = own(&ctx)?;
                    let mut to = ToJs {
                        ctx: &ctx,
                        makers: &makers,
                        sources: hands_back.then_some(&mut sources),
                        call,
                    };
                    let this = to.document(this.as_raw())?;
                    let mut list = Args::new(ctx.clone(), args.len());
                    for arg in &args {
                        list.push_arg(to.value(arg.as_value())?)?;
                    }
                    if !hands_back {
                        ctx.globals().set("obj", this.clone())?;
                    }
                    list.this(this)?;
                    let functions: Object<'_> = makers.get("functions")?;
                    let value = functions.get::<_, JsFunction<'_>>(at as u32)?.call_arg(list)?;
                    finish(&FromJs { makers: &makers, sources: &sources, call }, value)
                };
                attempt().map_err(|failure| shared.failed(&ctx, failure))
            })
        })
    }
}

/// JavaScript's idea of truth.
fn truthy(value: &Js<'_>) -> bool {
    match (value.as_bool(), value.as_number(), value.as_string()) {
        (Some(truth), ..) => truth,
        (_, Some(number), _) => number != 0.0 && !number.is_nan(),
        (_, _, Some(text)) => text.to_string().map_or(true, |text| !text.is_empty()),
        _ => !value.is_null() && !value.is_undefined(),
    }
}

/// What the prelude has made.
fn own<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    ctx.globals().get(OWN)
}

/// Evaluates the prelude, which finds our own functions, and keeps what it gives.
fn furnish(ctx: &Ctx<'_>, shared: &Arc<Shared>, may_emit: bool) -> rquickjs::Result<()> {
    let natives = natives(ctx, shared)?;
    if may_emit {
        natives.set("emit", emit(ctx, shared.clone())?)?;
    }
    ctx.globals().set("$natives", natives)?;
    let own: Object<'_> = ctx.eval(PRELUDE)?;
    own.set("functions", Object::new(ctx.clone())?)?;
    ctx.globals().prop(OWN, Property::from(own))
}

/// What the prelude cannot do itself.
fn natives<'js>(ctx: &Ctx<'js>, shared: &Arc<Shared>) -> rquickjs::Result<Object<'js>> {
    let natives = Object::new(ctx.clone())?;
    let decimal = |ctx: Ctx<'js>, text: String| -> rquickjs::Result<String> {
        match text.parse::<Decimal128>() {
            Ok(number) => Ok(number.to_string()),
            Err(_) => Err(rquickjs::Exception::throw_message(&ctx, "Input is not a valid Decimal128 value.")),
        }
    };
    natives.set("decimal", JsFunction::new(ctx.clone(), decimal)?)?;
    let md5 = |text: String| -> String {
        Md5::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    natives.set("md5", JsFunction::new(ctx.clone(), md5)?)?;
    let stopped = shared.clone();
    let sleep = move |ctx: Ctx<'js>, milliseconds: f64| -> rquickjs::Result<()> {
        // Nothing of a `NaN`.
        let seconds = if milliseconds > 0.0 { milliseconds / 1000.0 } else { 0.0 };
        let time = Duration::from_secs_f64(seconds.min(LONGEST_SLEEP_SECONDS));
        sheaf_meter::pause(time).map_err(|error| stopped.stop(&ctx, error))
    };
    natives.set("sleep", JsFunction::new(ctx.clone(), sleep)?)?;
    Ok(natives)
}

/// What a map function hands its pairs to.
fn emit<'js>(ctx: &Ctx<'js>, shared: Arc<Shared>) -> rquickjs::Result<JsFunction<'js>> {
    let emit = move |ctx: Ctx<'js>, key: Js<'js>, value: Js<'js>| -> rquickjs::Result<()> {
        let makers = own(&ctx)?;
        let from = FromJs { makers: &makers, sources: &[], call: 0 };
        match from.owned(&key).and_then(|key| Ok((key, from.owned(&value)?))) {
            Ok(pair) => {
                let kept = shared.emitted.lock().push(pair);
                kept.map_err(|error| shared.stop(&ctx, error))
            }
            Err(Failure::Engine(error)) => Err(error),
            Err(Failure::Client(error)) => Err(rquickjs::Exception::throw_message(&ctx, error.message())),
        }
    };
    JsFunction::new(ctx.clone(), emit)
}

/// A runtime that could not be made, for want of memory.
fn no_engine(error: EngineError) -> Error {
    failure(format!("the JavaScript engine could not be started: {error}"))
}

fn failure(text: String) -> Error {
    Error::new(Code::JS_INTERPRETER_FAILURE, text)
}
