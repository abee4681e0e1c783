//! `$group` and `$sortByCount`.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, DocWriter, OwnedValue, RawDoc, Type, Value, array_in, doc, document_in};
use sheaf_collation::{SharedCollator, compare_by, hash_by};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::{Deps, Env, Expr, FieldPath, ParseCx, size_of_value};
use sheaf_meter::Held;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};
use smallvec::SmallVec;

use crate::accumulators::{Accumulation, State};
use crate::database::SharedDatabase;
use crate::stage::{Halves, Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};
use crate::stages::sort::Sort;

mod spill;

use spill::{Merged, Spill};

/// `$group`.
pub(crate) const GROUP: StageEntry = StageEntry::new("$group", parse, Split::Both, Needs::Nothing);
/// `$sortByCount`.
pub(crate) const SORT_BY_COUNT: StageEntry =
    StageEntry::new("$sortByCount", parse_sort_by_count, Split::Both, Needs::Nothing);

/// A parsed `$group`.
#[derive(Debug)]
pub struct Group {
    /// What the documents are grouped by.
    pub id: Expr,
    /// The output fields besides `_id`.
    pub accumulations: Vec<Accumulation>,
    /// Whether groups take more room with every document.
    grows: bool,
    /// How strings compare, if not by their bytes.
    collator: Option<SharedCollator>,
    /// Which part of a group over several shards it is.
    part: Part,
    /// The argument.
    spec: DocBuf,
}

/// Which part of a group over several shards a `$group` is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// All of it.
    Whole,
    /// That of one shard: its groups carry [partial](State::partial) results.
    Shard,
    /// The one that [merges](State::merge) those.
    Merger,
}

/// The flag of a shard's part.
const WILL_BE_MERGED: &str = "$willBeMerged";
/// The flag of the part that merges.
const DOING_MERGE: &str = "$doingMerge";

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(15947, "a group's fields must be specified in an object");
    };
    let mut id = None;
    let mut part = Part::Whole;
    let mut accumulations = Vec::new();
    for element in spec.iter() {
        if element.key() == "_id" {
            if id.is_some() {
                bail!(15948, "a group's _id may only be specified once");
            }
            id = Some(parse_id(element.value(), cx.expr)?);
        } else if matches!(element.key(), DOING_MERGE | WILL_BE_MERGED) {
            let Value::Bool(flag) = element.value() else {
                bail!(
                    13111,
                    "wrong type for field ({}) {} != {}",
                    element.key(),
                    element.value().kind() as u8,
                    Type::Bool as u8
                );
            };
            part = match element.key() {
                DOING_MERGE if flag => Part::Merger,
                DOING_MERGE => bail!(17030, "{DOING_MERGE} should be true if present"),
                _ if flag => Part::Shard,
                _ => Part::Whole,
            };
        } else {
            accumulations.push(Accumulation::parse(element, cx.expr)?);
        }
    }
    sheaf_meter::grow(spec.len())?;
    let Some(id) = id else { bail!(15955, "a group specification must include an _id") };
    if part == Part::Merger {
        let merging = accumulations.into_iter().map(|accumulation| accumulation.merging(cx.expr));
        accumulations = merging.collect::<Result<_>>()?;
    }
    Ok(vec![Arc::new(Group { part, ..Group::new(id, accumulations, DocBuf::from(spec), cx.expr) })])
}

/// Reads an `_id`: an object of expressions may not look like a projection.
fn parse_id(value: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    if let Value::Document(fields) = value
        && !fields.is_empty()
        && !fields.iter().next().is_some_and(|first| first.key().starts_with('$'))
    {
        for field in fields.iter() {
            let includes = field.value().is_number() || matches!(field.value(), Value::Bool(_));
            if includes || field.key().starts_with('$') {
                bail!(17390, "$group does not support inclusion-style expressions");
            }
        }
    }
    Expr::parse(value, cx)
}

pub(crate) fn parse_sort_by_count(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    match argument {
        Value::Document(spec) => {
            let mut fields = spec.iter();
            match (fields.next(), fields.next()) {
                (Some(only), None) if only.key().starts_with('$') => {}
                _ => bail!(
                    40147,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
                ),
            }
        }
        Value::String(path) if path.starts_with('$') => {}
        Value::String(_) => bail!(
            40148,
            "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
        ),
        _ => bail!(40149, "the sortByCount field must be specified as a string or as an object"),
    }
    let id = Expr::parse(argument, cx.expr)?;
    let spec = doc! { "_id": argument, "count": { "$sum": 1 } };
    let group = Group::new(id, vec![Accumulation::count("count")], spec, cx.expr);
    let pattern = DocBuf::new().with("count", -1);
    Ok(vec![Arc::new(group), Arc::new(Sort::new(pattern.as_raw(), cx.expr)?)])
}

impl Group {
    /// A whole group; `spec` is the argument of a `$group` that means the same.
    pub(crate) fn new(id: Expr, accumulations: Vec<Accumulation>, spec: DocBuf, cx: &ParseCx) -> Group {
        let grows = accumulations.iter().any(Accumulation::grows);
        Group { id, accumulations, grows, collator: cx.collator().cloned(), part: Part::Whole, spec }
    }
}

impl Stage for Group {
    fn name(&self) -> &'static str {
        "$group"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(GroupRun::new(self, input))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.id.dependencies(deps);
        self.accumulations.iter().for_each(|accumulation| accumulation.dependencies(deps));
        Reads::Only
    }

    fn shape(&self) -> Shape<'_> {
        let distinct = self.id.as_path().filter(|_| self.accumulations.is_empty());
        Shape::Group { distinct }
    }

    fn one_of_each(&self) -> Option<(&FieldPath, bool)> {
        let operator = self.accumulations.first()?.operator();
        let first = match operator {
            "$first" => true,
            "$last" => false,
            _ => return None,
        };
        let alike = self.accumulations.iter().all(|accumulation| accumulation.operator() == operator);
        Some((self.id.as_path().filter(|_| alike)?, first))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { "$group": &self.spec })
    }

    fn halves(&self) -> Option<Halves> {
        let spec = self.spec.as_raw();
        let shard = DocBuf::build(|out| {
            out.document("$group").append_all(spec).append(WILL_BE_MERGED, true);
        });
        let merger = DocBuf::build(|out| {
            let mut out = out.document("$group");
            out.append("_id", "$_id");
            spec.iter().filter(|field| field.key() != "_id").for_each(|field| _ = out.append_element(field));
            out.append(DOING_MERGE, true);
        });
        // What is a part already is not cut again.
        (self.part == Part::Whole).then(|| Halves::unordered(vec![shard], vec![merger]))
    }

    fn open_pushed_down(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(GroupRun { pushed_down: true, ..GroupRun::new(self, input) })
    }

    fn is_pushed_down(&self) -> bool {
        true
    }
}

/// A group under way.
pub(crate) struct Running {
    pub(crate) id: OwnedValue,
    pub(crate) states: SmallVec<[Box<dyn State>; 4]>,
}

impl Running {
    fn start<'a>(stage: &'a Group, id: Value<'a>, env: &Env<'a>) -> Result<Running> {
        let states = stage.accumulations.iter().map(|accumulation| accumulation.start(id, env));
        Ok(Running { id: OwnedValue::from(id), states: states.collect::<Result<_>>()? })
    }

    /// Bytes of its `_id` and of what it has gathered.
    fn memory_bytes(&self) -> usize {
        let states: usize = self.states.iter().map(|state| state.memory_bytes()).sum();
        self.id.memory_bytes() + states
    }

    /// About how large its document will be: what it holds, but no larger than documents are.
    fn document_bytes(&self) -> usize {
        self.memory_bytes().min(crate::MAX_OUTPUT_SIZE)
    }

    /// The output document.
    fn finish(&self, stage: &Group, pushed_down: bool, arena: &Bump) -> Result<DocBuf> {
        // Room for all of it at once: a large document does not come to twice its size by growing.
        let mut bytes = Vec::with_capacity(self.document_bytes() + DOCUMENT_BYTES);
        let mut document = DocWriter::new(&mut bytes);
        document.append("_id", &self.id);
        for (accumulation, state) in stage.accumulations.iter().zip(&self.states) {
            if stage.part == Part::Shard {
                let partial = state.partial(arena)?;
                assert!(!partial.is_missing(), "a group has seen a document: {accumulation:?}");
                document.append(accumulation.field(), partial);
                continue;
            }
            let mut value = state.result(arena)?;
            if pushed_down {
                value = with_bounds_wrapped(value, accumulation.operator(), arena);
            }
            // An accumulator that saw nothing gives null, so that the output's shape does not vary.
            document.append(accumulation.field(), if value.is_missing() { Value::Null } else { value });
        }
        drop(document);
        let document = DocBuf::from_bytes(bytes);
        crate::check_made(document.as_raw())?;
        Ok(document)
    }
}

/// mongod's execution engine gives a MinKey or MaxKey that these accumulators hand on in a document: `{"": MinKey}`.
fn with_bounds_wrapped<'a>(value: Value<'a>, operator: &str, arena: &'a Bump) -> Value<'a> {
    let is_bound = |value: Value<'_>| matches!(value, Value::MinKey | Value::MaxKey);
    let wrapped = |value| match is_bound(value) {
        true => Value::Document(document_in(arena, |out| _ = out.append("", value))),
        false => value,
    };
    match (operator, value) {
        ("$first" | "$last" | "$min" | "$max", value) => wrapped(value),
        ("$addToSet", Value::Array(items)) if items.values().any(is_bound) => {
            Value::Array(array_in(arena, |out| items.values().for_each(|item| _ = out.push(wrapped(item)))))
        }
        _ => value,
    }
}

/// All groups, found by the hash of their `_id`, in which equal numbers are equal whatever their types.
#[derive(Default)]
struct Table {
    /// In the order of their first documents. A group that was taken out is gone.
    groups: Vec<Option<Running>>,
    by_hash: HashMap<u64, SmallVec<[u32; 2]>, PassThrough>,
    hasher: ahash::RandomState,
    held: usize,
    collator: Option<SharedCollator>,
}

/// The hash is the key.
#[derive(Clone, Default)]
struct PassThrough;

impl BuildHasher for PassThrough {
    type Hasher = Same;
    fn build_hasher(&self) -> Same {
        Same(0)
    }
}

struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {}
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl Table {
    fn hash(&self, id: Value<'_>) -> u64 {
        hash(&self.hasher, self.collator.as_ref(), id)
    }

    /// The group with this `_id`.
    fn get(&mut self, hash: u64, id: Value<'_>) -> Option<&mut Running> {
        let places = self.by_hash.get(&hash)?;
        let at = places.iter().find(|at| is_group(&self.groups, **at, id, self.collator.as_ref()))?;
        self.groups.get_mut(*at as usize)?.as_mut()
    }

    /// The group with this `_id`, which `start` makes if it is new.
    fn get_or_start(
        &mut self,
        id: Value<'_>,
        start: impl FnOnce() -> Result<Running>,
    ) -> Result<&mut Running> {
        let by = self.collator.as_ref();
        let places = self.by_hash.entry(hash(&self.hasher, by, id)).or_default();
        let at = match places.iter().find(|at| is_group(&self.groups, **at, id, by)) {
            Some(at) => *at as usize,
            None => {
                let group = start()?;
                self.held += group.id.memory_bytes() + GROUP_BYTES + group.states.len() * STATE_BYTES;
                let place = u32::try_from(self.groups.len()).expect("memory ends before 2^32 groups");
                places.push(place);
                self.groups.push(Some(group));
                self.groups.len() - 1
            }
        };
        match &mut self.groups[at] {
            Some(group) => Ok(group),
            None => bail!(Code::INTERNAL_ERROR, "a group was taken out while documents came"),
        }
    }

    fn has(&mut self, id: Value<'_>) -> bool {
        let hash = self.hash(id);
        self.get(hash, id).is_some()
    }

    /// Takes out the groups with this hash.
    fn take(&mut self, hash: u64) -> Vec<Running> {
        let places = self.by_hash.remove(&hash).unwrap_or_default();
        places.iter().filter_map(|at| self.groups[*at as usize].take()).collect()
    }
}

fn hash(hasher: &ahash::RandomState, collator: Option<&SharedCollator>, id: Value<'_>) -> u64 {
    let mut hasher = hasher.build_hasher();
    hash_by(collator, id, &mut hasher);
    hasher.finish()
}

fn is_group(groups: &[Option<Running>], at: u32, id: Value<'_>, collator: Option<&SharedCollator>) -> bool {
    let Some(group) = &groups[at as usize] else { return false };
    match collator {
        None => group.id.equals(id),
        Some(_) => compare_by(collator, group.id.as_value(), id).is_eq(),
    }
}

/// An estimate of what a group takes in the table, and of what a state takes apart from what it says itself.
const GROUP_BYTES: usize = 64;
const STATE_BYTES: usize = 64;
/// Room for the small values of a group's document.
const DOCUMENT_BYTES: usize = 64;

/// Memory is accounted in steps of this.
const COUNTED_BYTES: u64 = 64 << 10;
/// What is larger is counted before it is taken.
const LARGE_BYTES: usize = 64 << 10;

/// Runs `$group`.
struct GroupRun {
    stage: Arc<Group>,
    input: BoxOperator,
    state: Gathering,
    arena: Bump,
    /// mongod would run it in its execution engine, where some errors have numbers of their own.
    pushed_down: bool,
    /// The account of the groups in memory.
    held: Held,
    /// The group being given, and the account of a large one.
    current: Option<DocBuf>,
    of_current: Held,
    figures: Figures,
}

/// How far a `$group` has come.
enum Gathering {
    /// Documents come in; those beyond the memory are set aside.
    Taking(Box<Table>, Option<Box<Spill>>),
    /// The groups come out of memory.
    Giving(std::vec::IntoIter<Option<Running>>),
    /// The groups come out of memory and from disk.
    Merging(Box<Merged>),
}

impl GroupRun {
    fn new(stage: Arc<Group>, input: BoxOperator) -> Self {
        let table = Table { collator: stage.collator.clone(), ..Table::default() };
        GroupRun {
            stage,
            input,
            state: Gathering::Taking(Box::new(table), None),
            arena: Bump::new(),
            pushed_down: false,
            held: Held::default(),
            current: None,
            of_current: Held::default(),
            figures: Figures::default(),
        }
    }

    /// Takes in the input's row.
    fn take(&mut self, cx: &Cx<'_>) -> Result<()> {
        let Gathering::Taking(table, spill) = &mut self.state else {
            unreachable!("documents come before the first group is given");
        };
        self.arena.reset();
        let env = cx.env_over(&self.input, &self.arena);
        let document = self.input.row().document();
        if self.held.bytes() == 0 {
            self.held = sheaf_meter::reserve(0)?;
        }
        let taken = take_in(&self.stage, document, table, spill, &mut self.held, cx, &env);
        taken.map_err(|error| if self.pushed_down { engine_error(error) } else { error })?;
        if table.held > cx.limits.memory_bytes && spill.is_none() {
            *spill = Some(begin_spill(table.held, cx)?);
        }
        let bytes = (table.held as u64).next_multiple_of(COUNTED_BYTES);
        if bytes == self.held.bytes() { Ok(()) } else { self.held.set(bytes) }
    }

    /// All documents have come.
    fn finish(&mut self) -> Result<()> {
        let taking = std::mem::replace(&mut self.state, Gathering::Giving(Vec::new().into_iter()));
        let Gathering::Taking(table, spill) = taking else {
            unreachable!("the input comes to its end once");
        };
        self.state = match spill {
            Some(spill) => Gathering::Merging(Box::new(spill.finish(*table, &mut self.figures)?)),
            None => Gathering::Giving(table.groups.into_iter()),
        };
        Ok(())
    }
}

/// The error of mongod's execution engine for one that an expression met.
fn engine_error(error: Error) -> Error {
    match (error.code().0, error.message()) {
        (2, message @ "can't $divide by zero") => Error::location(4_848_401, message),
        (16610 | 5_733_415, message) => Error::location(4_848_403, message),
        (40400, _) => Error::location(5_911_200, "$mergeObjects only supports objects"),
        _ => error,
    }
}

/// From now on documents are set aside.
fn begin_spill(held: usize, cx: &Cx<'_>) -> Result<Box<Spill>> {
    cx.check_memory(held, |_| {
        "Exceeded memory limit for $group, but didn't allow external sort. Pass allowDiskUse:true to opt in."
            .to_owned()
    })?;
    Ok(Box::new(Spill::new(cx)))
}

fn take_in<'a>(
    stage: &'a Group,
    document: RawDoc<'a>,
    table: &mut Table,
    spill: &mut Option<Box<Spill>>,
    held: &mut Held,
    cx: &Cx<'_>,
    env: &Env<'a>,
) -> Result<()> {
    let id = stage.id.eval(document, env)?;
    let id = if id.is_missing() { Value::Null } else { id };
    let values = stage.accumulations.iter().map(|accumulation| accumulation.value(document, env));
    if let Some(spill) = spill {
        return spill.take_in(stage, id, values, table);
    }
    let of_document = if stage.grows { document.len() } else { 0 };
    if size_of_value(id).max(of_document) <= LARGE_BYTES {
        return add_to(stage, id, values, table, env);
    }
    // What may be large is counted before it is taken. Where there is no room for it the document is set aside as it is.
    let values: SmallVec<[Value<'a>; 4]> = values.collect::<Result<_>>()?;
    let of_values: usize = values.iter().map(|value| size_of_value(*value)).sum();
    let is_known = size_of_value(id) <= LARGE_BYTES || table.has(id);
    let with_id = table.held + if is_known { 0 } else { size_of_value(id) };
    let is_full = !is_known && table.held > 0 && with_id > cx.limits.memory_bytes;
    let wanted = (with_id + if stage.grows { of_values } else { 0 }) as u64;
    if !is_full {
        match held.set(wanted.max(held.bytes())) {
            Ok(()) => return add_to(stage, id, values.into_iter().map(Ok), table, env),
            Err(refused) if !cx.limits.allow_disk_use => return Err(refused),
            Err(_) => {}
        }
    }
    let spill = spill.insert(begin_spill(with_id, cx)?);
    spill.take_in(stage, id, values.into_iter().map(Ok), table)
}

/// Adds a document's values to its group.
fn add_to<'a>(
    stage: &'a Group,
    id: Value<'a>,
    mut values: impl Iterator<Item = Result<Value<'a>>>,
    table: &mut Table,
    env: &Env<'a>,
) -> Result<()> {
    let group = table.get_or_start(id, || Running::start(stage, id, env))?;
    if !stage.grows {
        return values.zip(&mut group.states).try_for_each(|(value, state)| state.add(value?));
    }
    let mut more = 0;
    for state in &mut group.states {
        let before = state.memory_bytes();
        state.add(values.next().transpose()?.unwrap_or(Value::Missing))?;
        more += state.memory_bytes() as isize - before as isize;
    }
    table.held = table.held.saturating_add_signed(more);
    Ok(())
}

impl Operator for GroupRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let group = match &mut self.state {
            Gathering::Taking(..) => {
                match self.input.work(cx)? {
                    Step::Row => self.take(cx)?,
                    Step::More => {}
                    Step::Eof => self.finish()?,
                }
                return Ok(Step::More);
            }
            Gathering::Giving(groups) => groups
                .next()
                .map(|group| group.expect("no group is taken out of a table that is not spilled")),
            Gathering::Merging(merged) => merged.next(&self.stage, cx)?,
        };
        self.arena.reset();
        let Some(group) = group else {
            self.held = Held::default();
            return Ok(Step::Eof);
        };
        self.current = None;
        self.of_current = Held::default();
        if group.memory_bytes() > LARGE_BYTES {
            self.of_current = sheaf_meter::reserve(group.document_bytes() as u64)?;
        }
        self.current = Some(group.finish(&self.stage, self.pushed_down, &self.arena)?);
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        self.current.as_ref().map_or(Row::default(), |group| Row::of(group.as_raw()))
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.current = None;
        self.of_current = Held::default();
    }

    fn suspend(&mut self) {
        self.release();
        sheaf_rows::let_go_arena(&mut self.arena);
        self.input.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
