//! Runs `$_internalSetWindowFields`.

use std::sync::Arc;

use sheaf_bson::{Bump, DocWriter, OwnedValue, RawDoc, Value};
use sheaf_collation::compare_by;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Env;
use sheaf_meter::Held;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step, let_go};

use super::SetWindowFields;
use super::function::Kind;
use super::running::Running;
use super::waiting::{Queue, Waiting};

/// The room of a document that was larger is not kept.
const SPARE_BYTES: usize = 4 << 10;

/// Memory is accounted in steps of this.
const COUNTED_BYTES: u64 = 64 << 10;

/// What is larger is counted before it is taken, and beside the stage's own memory where it does not wait.
const LARGE_BYTES: usize = 64 << 10;

/// Documents come in sorted by partition, and go out in that order when the functions know enough.
pub(super) struct WindowRun {
    stage: Arc<SetWindowFields>,
    input: BoxOperator,
    /// The value that the partition's documents share; `None` before the first.
    partition: Option<OwnedValue>,
    functions: Vec<Box<dyn Running>>,
    queue: Queue,
    /// How many documents of the partition have come, and how many have gone.
    taken: u64,
    given: u64,
    /// All of the partition has come. The next one's first document, unless there is none.
    ended: bool,
    next: Option<(OwnedValue, Waiting)>,
    /// The document that went last, and what was made of it.
    current: Option<Waiting>,
    output: Vec<u8>,
    /// Room for the next document: that of one that has gone.
    spare: Waiting,
    arena: Bump,
    held: Held,
    figures: Figures,
}

impl WindowRun {
    pub(super) fn new(stage: Arc<SetWindowFields>, input: BoxOperator) -> Self {
        WindowRun {
            stage,
            input,
            partition: None,
            functions: Vec::new(),
            queue: Queue::default(),
            taken: 0,
            given: 0,
            ended: false,
            next: None,
            current: None,
            output: Vec::new(),
            spare: Waiting::default(),
            arena: Bump::new(),
            held: Held::default(),
            figures: Figures::default(),
        }
    }

    /// Takes in the input's row, which may be the next partition's first.
    fn take(&mut self, cx: &Cx<'_>) -> Result<()> {
        self.arena.reset();
        let size = self.input.row().document().len();
        if size > LARGE_BYTES {
            self.make_room(size, cx)?;
        }
        let mut row = std::mem::take(&mut self.spare);
        row.put(self.input.row().document(), self.input.metadata());
        self.input.release();
        let env = cx.env(&self.arena);
        if let Some(metadata) = row.metadata() {
            env.set_metadata(metadata);
        }
        let partition = self.stage.partition_of(row.document(), &env)?;
        let by = self.stage.collator.as_ref();
        let Some(known) = &self.partition else {
            let partition = OwnedValue::from(partition);
            drop(env);
            return self.begin(partition, row, cx);
        };
        if compare_by(by, known.as_value(), partition).is_ne() {
            let partition = OwnedValue::from(partition);
            drop(env);
            self.ended = true;
            self.next = Some((partition, row));
            return self.make_room(0, cx);
        }
        feed(&self.stage, &mut self.functions, &row, &self.arena, &env)?;
        drop(env);
        self.keep(row, cx)
    }

    /// Begins a partition with its first document.
    fn begin(&mut self, partition: OwnedValue, row: Waiting, cx: &Cx<'_>) -> Result<()> {
        self.arena.reset();
        let env = cx.env(&self.arena);
        let outputs = self.stage.outputs.iter();
        self.functions = outputs.map(|output| output.function.start(&env)).collect::<Result<_>>()?;
        drop(env);
        (self.taken, self.given, self.ended) = (0, 0, false);
        self.partition = Some(partition);
        self.take_in(row, cx)
    }

    fn take_in(&mut self, row: Waiting, cx: &Cx<'_>) -> Result<()> {
        self.arena.reset();
        let env = cx.env(&self.arena);
        if let Some(metadata) = row.metadata() {
            env.set_metadata(metadata);
        }
        feed(&self.stage, &mut self.functions, &row, &self.arena, &env)?;
        drop(env);
        self.keep(row, cx)
    }

    /// Has a document wait that the functions have seen.
    fn keep(&mut self, row: Waiting, cx: &Cx<'_>) -> Result<()> {
        self.queue.push(row);
        self.taken += 1;
        self.account(cx)
    }

    /// Counts what is held; moves waiting documents to disk if that is too much.
    fn account(&mut self, cx: &Cx<'_>) -> Result<()> {
        let limit = cx.limits.memory_bytes;
        let functions: usize = self.functions.iter().map(|running| running.memory_bytes()).sum();
        if functions + self.queue.memory_bytes() > limit
            && cx.limits.allow_disk_use
            && self.queue.memory_bytes() > 0
        {
            self.spill()?;
        }
        let used = functions + self.queue.memory_bytes();
        if used > limit {
            bail!(
                5414201,
                "Exceeded memory limit in DocumentSourceSetWindowFields, used {used} bytes but max allowed is {limit}"
            );
        }
        self.count(used + self.beside())
    }

    /// Counts so many bytes from now on.
    fn count(&mut self, bytes: usize) -> Result<()> {
        let bytes = (bytes as u64).next_multiple_of(COUNTED_BYTES);
        if bytes == self.held.bytes() {
            return Ok(());
        }
        if self.held.bytes() == 0 {
            self.held = sheaf_meter::reserve(0)?;
        }
        self.held.set(bytes)
    }

    /// What it has besides those that wait and what the functions hold, where that is large: the partition's value, the next one's with
    /// its first document, and the document that went last with what was made of it.
    fn beside(&self) -> usize {
        let next = self.next.as_ref().map_or(0, |(value, row)| value.memory_bytes() + row.memory_bytes());
        let partition = self.partition.as_ref().map_or(0, OwnedValue::memory_bytes);
        let current = self.current.as_ref().map_or(0, Waiting::memory_bytes);
        let all = [next, partition, current, self.output.capacity()];
        all.iter().filter(|bytes| **bytes > LARGE_BYTES).sum()
    }

    /// Counts so much more before it is taken; those that wait go to disk if there is no memory for it otherwise.
    fn make_room(&mut self, bytes: usize, cx: &Cx<'_>) -> Result<()> {
        let functions: usize = self.functions.iter().map(|running| running.memory_bytes()).sum();
        let others = functions + self.beside() + bytes;
        match self.count(others + self.queue.memory_bytes()) {
            Err(_) if cx.limits.allow_disk_use && self.queue.memory_bytes() > 0 => {
                self.spill()?;
                self.count(others)
            }
            counted => counted,
        }
    }

    /// Moves what waits to disk.
    fn spill(&mut self) -> Result<()> {
        let (records, bytes) = self.queue.spill()?;
        self.figures.spilled.count += 1;
        self.figures.spilled.records += records;
        self.figures.spilled.bytes += bytes;
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool> {
        for running in &mut self.functions {
            if !running.is_ready(self.given, self.ended)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives the partition's next document with its fields.
    fn give(&mut self, cx: &Cx<'_>) -> Result<()> {
        // The document and what is made of it take the place of those before.
        let_go(&mut self.output);
        if self.current.as_ref().is_some_and(|gone| gone.memory_bytes() > LARGE_BYTES) {
            self.current = None;
        }
        let Some(row) = self.queue.pop()? else {
            unreachable!("a document that has come waits until it goes");
        };
        if row.memory_bytes() > LARGE_BYTES {
            self.make_room(2 * row.memory_bytes(), cx)?;
        }
        self.arena.reset();
        let env = cx.env(&self.arena);
        for (output, running) in self.stage.outputs.iter().zip(&mut self.functions) {
            env.set(output.slot, running.result(self.given, &self.arena)?);
        }
        self.given += 1;
        self.output.clear();
        let mut out = DocWriter::new(&mut self.output);
        match &self.stage.projection {
            Some(projection) => projection.apply(row.document(), &env, None, &mut out)?,
            None => _ = out.append_all(row.document()),
        }
        drop(out);
        drop(env);
        crate::check_made(RawDoc::new(&self.output))?;
        if let Some(gone) = self.current.replace(row)
            && gone.memory_bytes() <= SPARE_BYTES
        {
            self.spare = gone;
        }
        Ok(())
    }
}

/// Shows the functions a document of their partition.
fn feed<'a>(
    stage: &'a SetWindowFields,
    functions: &mut [Box<dyn Running>],
    row: &'a Waiting,
    arena: &'a Bump,
    env: &Env<'a>,
) -> Result<()> {
    let document = row.document();
    for (output, running) in stage.outputs.iter().zip(functions) {
        let value = output.function.input.eval(document, env)?;
        let sort = match &output.function.kind {
            Kind::Rank(_) => stage.rank_key(document, row.metadata(), arena)?,
            _ if running.needs_sort() => stage.sort_value(document, arena),
            _ => Value::Missing,
        };
        running.take(value, sort)?;
    }
    Ok(())
}

impl SetWindowFields {
    /// The value by which the document is partitioned.
    ///
    /// Errors: `TypeMismatch` for an array.
    fn partition_of<'a>(&'a self, document: RawDoc<'a>, env: &Env<'a>) -> Result<Value<'a>> {
        let Some(expr) = &self.partition_by else { return Ok(Value::Null) };
        match expr.eval(document, env)? {
            Value::Array(_) => {
                bail!(Code::TYPE_MISMATCH, "Cannot 'partitionBy' an expression of type array")
            }
            Value::Missing => Ok(Value::Null),
            value => Ok(value),
        }
    }
}

impl Operator for WindowRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.given < self.taken && self.is_ready()? {
            self.give(cx)?;
            return Ok(Step::Row);
        }
        if self.ended {
            assert!(self.given == self.taken, "of a partition that has come to its end everything is known");
            return match self.next.take() {
                Some((partition, row)) => {
                    self.begin(partition, row, cx)?;
                    Ok(Step::More)
                }
                None => Ok(Step::Eof),
            };
        }
        match self.input.work(cx)? {
            Step::Row => self.take(cx)?,
            Step::More => {}
            Step::Eof => self.ended = true,
        }
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        Row::of(RawDoc::new(&self.output))
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.current.as_ref().and_then(Waiting::metadata)
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        let_go(&mut self.output);
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
