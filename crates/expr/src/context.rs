//! What parsing needs to know: the time, and the variables in scope.

use std::sync::Arc;
use std::sync::OnceLock;

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::{ALLOCATION, Held};

use crate::constant::{Constant, size_of_constant};
use crate::expr::Expr;

/// The place of a variable's value in an [`crate::Env`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot(u32);

impl Slot {
    /// Its index among an [`crate::Env`]'s values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a name in scope stands for.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    Slot(Slot),
    Constant(Constant),
}

/// Who knows the cluster time: a member of a replica set.
pub trait ClusterClock: Send + Sync {
    /// The highest cluster time that this node knows.
    fn cluster_time(&self) -> Timestamp;
}

/// A clock that always shows the same.
impl ClusterClock for Timestamp {
    fn cluster_time(&self) -> Timestamp {
        *self
    }
}

/// What a database keeps for its clients' JavaScript.
pub trait StoredFunctions: Send + Sync {
    /// Functions and other values by their names.
    ///
    /// Errors: those of reading them.
    fn load(&self) -> Result<DocBuf>;
}

#[derive(Clone)]
struct StoredRef(Arc<dyn StoredFunctions>);

impl std::fmt::Debug for StoredRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredFunctions")
    }
}

#[derive(Clone)]
struct ClockRef(Arc<dyn ClusterClock>);

impl std::fmt::Debug for ClockRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterClock")
    }
}

/// What a variable takes besides its name and its value, in the list of names and where it is set.
const VARIABLE_BYTES: usize = 2 * size_of::<(Box<str>, Binding)>() + ALLOCATION;

/// A mark in the list of variables: [`ParseCx::leave`] forgets what was declared since.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Scope {
    names: usize,
}

/// What a server knows for variables of its own.
#[derive(Clone, Default)]
pub struct SystemVariables {
    /// What shows `$$CLUSTER_TIME`; without it its use is an error, as on a standalone mongod.
    pub cluster_clock: Option<Arc<dyn ClusterClock>>,
    /// `$$USER_ROLES`: an array of `{_id, role, db}`; without it there is no such variable.
    pub user_roles: Option<Arc<DocBuf>>,
    /// What clients' JavaScript finds in its database.
    pub stored: Option<Arc<dyn StoredFunctions>>,
}

/// The context of parsing: system variables, user variables in scope, and what the place allows.
/// One context serves a whole command, so that slots never collide.
#[derive(Clone, Debug)]
pub struct ParseCx {
    pub(crate) now: Option<i64>,
    /// Read when it is first asked for.
    cluster_time: OnceLock<Timestamp>,
    cluster_clock: Option<ClockRef>,
    pub(crate) user_roles: Option<Arc<DocBuf>>,
    stored: Option<StoredRef>,
    /// Whether `$$NOW` is known.
    pub(crate) has_now: bool,
    pub(crate) redact: bool,
    pub(crate) depth: usize,
    api_strict: bool,
    validator: bool,
    names: Vec<(Box<str>, Binding)>,
    /// The memory of the command's variables, where they are large.
    held: Vec<Arc<Held>>,
    next_slot: u32,
    seed: u64,
    fold_error: Option<Error>,
    collator: Option<SharedCollator>,
}

impl Default for ParseCx {
    fn default() -> Self {
        Self::new()
    }
}

impl ParseCx {
    /// No user variables, no known time (`$$NOW` is then read from the [`crate::Env`]).
    pub fn new() -> Self {
        use std::hash::BuildHasher;
        ParseCx {
            now: None,
            cluster_time: OnceLock::new(),
            cluster_clock: None,
            user_roles: None,
            stored: None,
            redact: false,
            depth: 0,
            api_strict: false,
            validator: false,
            names: Vec::new(),
            held: Vec::new(),
            next_slot: 0,
            seed: std::hash::RandomState::new().hash_one(0u8),
            fold_error: None,
            collator: None,
            has_now: true,
        }
    }

    /// Fixes `$$NOW` (milliseconds since the epoch), which makes it a constant.
    #[must_use]
    pub fn with_now(mut self, now_millis: i64) -> Self {
        self.now = Some(now_millis);
        self
    }

    /// Makes `$$NOW` unknown, as it is in filters of some commands.
    #[must_use]
    pub fn without_now(mut self) -> Self {
        self.now = None;
        self.has_now = false;
        self
    }

    /// Makes `$$CLUSTER_TIME` known: what `clock` shows when it is first used, and the same from then on. Without a
    /// clock its use is an error, as on a standalone mongod.
    #[must_use]
    pub fn with_cluster_clock(mut self, clock: Option<Arc<dyn ClusterClock>>) -> Self {
        self.cluster_clock = clock.map(ClockRef);
        self
    }

    /// Makes the server's own variables known.
    #[must_use]
    pub fn with_system(self, system: SystemVariables) -> Self {
        let mut cx = self.with_cluster_clock(system.cluster_clock);
        cx.user_roles = system.user_roles;
        cx.stored = system.stored.map(StoredRef);
        cx
    }

    /// What the database keeps for clients' JavaScript, by its names.
    ///
    /// Errors: those of [`StoredFunctions::load`].
    pub fn stored_functions(&self) -> Result<DocBuf> {
        self.stored.as_ref().map_or_else(|| Ok(DocBuf::new()), |stored| stored.0.load())
    }

    /// Whether this is a part of a replica set or of a cluster of shards: a standalone mongod knows no cluster time.
    pub fn is_clustered(&self) -> bool {
        self.cluster_clock.is_some()
    }

    pub(crate) fn cluster_time(&self) -> Option<Timestamp> {
        let clock = self.cluster_clock.as_ref()?;
        Some(*self.cluster_time.get_or_init(|| clock.0.cluster_time()))
    }

    /// Says that the command is held to the stable API (`apiStrict: true`). All operators here belong to it;
    /// pipelines ask for their stages.
    #[must_use]
    pub fn with_api_strict(mut self, api_strict: bool) -> Self {
        self.api_strict = api_strict;
        self
    }

    /// Says whether what is parsed next is part of a collection's validator, where functions have no place.
    pub fn set_validator(&mut self, validator: bool) {
        self.validator = validator;
    }

    /// Whether what is parsed is part of a collection's validator.
    pub fn is_validator(&self) -> bool {
        self.validator
    }

    /// Whether the command is held to the stable API.
    pub fn is_api_strict(&self) -> bool {
        self.api_strict
    }

    /// Sets how strings compare in all that is parsed from here on: expressions, filters, sorts, updates, stages.
    #[must_use]
    pub fn with_collator(mut self, collator: Option<SharedCollator>) -> Self {
        self.collator = collator;
        self
    }

    /// How strings compare, if not by their bytes.
    pub fn collator(&self) -> Option<&SharedCollator> {
        self.collator.as_ref()
    }

    /// Seeds `$rand`; without it, every context is seeded differently.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Allows or refuses `$$DESCEND`, `$$PRUNE` and `$$KEEP` (only `$redact` allows them).
    pub fn set_redact(&mut self, allowed: bool) {
        self.redact = allowed;
    }

    /// Opens a scope for variables.
    pub fn enter(&self) -> Scope {
        Scope { names: self.names.len() }
    }

    /// Forgets the variables declared since [`ParseCx::enter`]. Their slots are not used again.
    pub fn leave(&mut self, scope: Scope) {
        self.names.truncate(scope.names);
    }

    /// Declares a user variable whose value is set in the [`crate::Env`] before each evaluation. The name is
    /// checked as MongoDB does for names that users may define.
    ///
    /// ```
    /// use sheaf_bson::{Bump, RawDoc, Value};
    /// use sheaf_expr::{Env, Expr, ParseCx};
    ///
    /// let mut cx = ParseCx::new();
    /// let least = cx.declare("least")?;
    /// let expression = Expr::parse(Value::String("$$least"), &mut cx)?;
    /// let arena = Bump::new();
    /// let env = Env::new(&arena);
    /// env.set(least, Value::Int32(40));
    /// assert!(matches!(expression.eval(RawDoc::EMPTY, &env)?, Value::Int32(40)));
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    pub fn declare(&mut self, name: &str) -> Result<Slot> {
        validate_variable_name(name)?;
        self.bind_slot(name)
    }

    /// Declares `$$ROOT` as a variable, for a stage that evaluates its expression on parts of the document.
    pub fn declare_root(&mut self) -> Result<Slot> {
        self.bind_slot("ROOT")
    }

    fn bind_slot(&mut self, name: &str) -> Result<Slot> {
        sheaf_meter::grow(VARIABLE_BYTES + name.len())?;
        let slot = Slot(self.next_slot);
        self.next_slot += 1;
        self.names.push((name.into(), Binding::Slot(slot)));
        Ok(slot)
    }

    /// Declares a user variable with a value known now, which becomes a constant where it is used.
    pub fn declare_constant(&mut self, name: &str, value: Value<'_>) -> Result<()> {
        validate_variable_name(name)?;
        sheaf_meter::grow(VARIABLE_BYTES + name.len() + size_of_constant(value))?;
        self.names.push((name.into(), Binding::Constant(Constant::new(value))));
        Ok(())
    }

    /// Declares the variables of a command's `let` document: each is an expression without field paths,
    /// evaluated now; later ones may use earlier ones.
    pub fn declare_let(&mut self, variables: RawDoc<'_>) -> Result<()> {
        let ((), held) = sheaf_meter::growing(|| self.declare_all(variables))?;
        if held.bytes() > 0 {
            self.held.push(Arc::new(held));
        }
        Ok(())
    }

    fn declare_all(&mut self, variables: RawDoc<'_>) -> Result<()> {
        for element in variables.iter() {
            if let name @ ("NOW" | "CLUSTER_TIME" | "USER_ROLES") = element.key() {
                bail!(4738901, "Attempt to set internal constant: {name}");
            }
            validate_variable_name(element.key())?;
            let expr = Expr::parse(element.value(), self)?;
            let mut deps = crate::Deps::new();
            expr.dependencies(&mut deps);
            if !deps.is_empty() {
                bail!(
                    4890500,
                    "Command let Expression tried to access a field, but this is not allowed because Command \
                     let Expressions run before the query examines any documents."
                );
            }
            let arena = bumpalo::Bump::new();
            let env = crate::Env::new(&arena).with_now(self.now.unwrap_or(0));
            let value = expr.eval(RawDoc::EMPTY, &env)?;
            self.declare_constant(element.key(), value)?;
        }
        Ok(())
    }

    /// The user variables in scope whose values are known: `(name, value)`, for passing on a command's
    /// `let`.
    pub fn constants(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.names.iter().filter_map(|(name, binding)| match binding {
            Binding::Constant(value) => Some((&**name, value.value())),
            Binding::Slot(_) => None,
        })
    }

    /// The user variables in scope whose values are set before each evaluation; where two have one name, the last counts.
    pub fn slots(&self) -> impl Iterator<Item = (&str, Slot)> {
        self.names.iter().filter_map(|(name, binding)| match binding {
            Binding::Slot(slot) => Some((&**name, *slot)),
            Binding::Constant(_) => None,
        })
    }

    /// Ends parsing: gives the first error that folding constants met, if any, with MongoDB's words for a
    /// pipeline in front (`Failed to optimize pipeline`).
    pub fn finish(&mut self) -> Result<()> {
        self.finish_as("Failed to optimize pipeline")
    }

    /// Like [`ParseCx::finish`], with other words in front (`$expr` in a find has
    /// `Failed to optimize expression`); empty words put nothing there.
    pub fn finish_as(&mut self, context: &str) -> Result<()> {
        match self.fold_error.take() {
            None => Ok(()),
            Some(error) if context.is_empty() => Err(error),
            Some(error) => Err(error.context(context)),
        }
    }

    /// Keeps the first error of folding.
    pub(crate) fn fold_failed(&mut self, error: Error) {
        self.fold_error.get_or_insert(error);
    }

    /// Takes the kept folding error out, for operators that look only at some of their arguments.
    pub(crate) fn swap_fold_error(&mut self, error: Option<Error>) -> Option<Error> {
        std::mem::replace(&mut self.fold_error, error)
    }

    pub(crate) fn lookup(&self, name: &str) -> Option<&Binding> {
        self.names.iter().rev().find(|(n, _)| **n == *name).map(|(_, binding)| binding)
    }

    /// How many names a search for one may have to look through.
    pub(crate) fn names_in_scope(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn next_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0xA076_1D64_78BD_642F);
        self.seed
    }
}

/// Checks a name that a user gives to a variable (`$let`, `$map.as`, a command's `let`).
pub fn validate_variable_name(name: &str) -> Result<()> {
    if name == "CURRENT" {
        return Ok(());
    }
    check_name(name, |b| b.is_ascii_lowercase())
}

/// Checks a name that is read (`$$name`), which may be a system variable's.
pub(crate) fn validate_variable_read(name: &str) -> Result<()> {
    check_name(name, |b| b.is_ascii_alphabetic())
}

fn check_name(name: &str, first: impl Fn(u8) -> bool) -> Result<()> {
    let bytes = name.as_bytes();
    let Some(head) = bytes.first() else {
        bail!(Code::FAILED_TO_PARSE, "empty variable names are not allowed");
    };
    if !first(*head) && head.is_ascii() {
        bail!(Code::FAILED_TO_PARSE, "'{name}' starts with an invalid character for a user variable name");
    }
    match bytes[1..].iter().find(|b| b.is_ascii() && !b.is_ascii_alphanumeric() && **b != b'_') {
        Some(bad) => bail!(
            Code::FAILED_TO_PARSE,
            "'{name}' contains an invalid character for a variable name: '{}'",
            *bad as char
        ),
        None => Ok(()),
    }
}
