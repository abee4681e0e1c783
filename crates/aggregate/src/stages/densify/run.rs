//! Runs `$_internalDensify`.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_bson::{DocBuf, DocWriter, OwnedValue, RawDoc, Value, compare};
use sheaf_errors::{Result, bail};
use sheaf_expr::FieldPath;
use sheaf_meter::{ALLOCATION, Held};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use super::{Bounds, Densify, nested};
use crate::stages::window::Waiting;

/// No more documents than this are made.
const MADE_MAX: u64 = 500_000;

/// Documents that are made, and the one that comes behind them.
struct Making {
    partition: usize,
    /// The next value, and where the values end: before it, or with it.
    next: Value<'static>,
    end: Value<'static>,
    with_end: bool,
    then: Option<Waiting>,
}

/// What is known of a partition; of all documents, if there are none.
struct Partition {
    /// The fields that its documents share.
    fields: DocBuf,
    /// The next value on its steps. It is kept, and not the one before: with steps of infinity there is no way back.
    next: Value<'static>,
}

/// What the row is.
enum Output {
    Input,
    Made(DocBuf),
    Kept(Waiting),
}

pub(super) struct DensifyRun {
    stage: Arc<Densify>,
    input: BoxOperator,
    partitions: Vec<Partition>,
    by_fields: HashMap<OwnedValue, usize, ahash::RandomState>,
    /// The smallest value, and the largest so far.
    extremes: Option<(Value<'static>, Value<'static>)>,
    making: Option<Making>,
    /// At the end: the next partition to be completed.
    completing: Option<usize>,
    made: u64,
    output: Output,
    held: Held,
    bytes: u64,
}

impl DensifyRun {
    pub(super) fn new(stage: Arc<Densify>, input: BoxOperator) -> Self {
        DensifyRun {
            stage,
            input,
            partitions: Vec::new(),
            by_fields: HashMap::default(),
            extremes: None,
            making: None,
            completing: None,
            made: 0,
            output: Output::Input,
            held: Held::default(),
            bytes: 0,
        }
    }

    /// Takes the input's row; says whether it is the output as it is.
    fn take(&mut self, cx: &Cx<'_>) -> Result<bool> {
        let stage = self.stage.clone();
        let document = self.input.row().document();
        let Some(value) = stage.value_of(document)? else { return Ok(true) };
        let fields = DocBuf::build(|out| shared_fields(document, &stage.partition_by, out));
        let least = match self.extremes {
            None => value,
            Some((least, _)) => least,
        };
        self.extremes = Some((least, value));
        let key = OwnedValue::from(Value::Document(fields.as_raw()));
        let partition = match self.by_fields.get(&key) {
            Some(known) => *known,
            None => {
                let next = match stage.bounds {
                    Bounds::Partition => stage.step_from(value)?,
                    Bounds::Full => least,
                    Bounds::Between(low, _) => low,
                };
                self.add_partition(key, fields, next, cx)?
            }
        };
        let next = self.partitions[partition].next;
        let end = match stage.bounds {
            Bounds::Between(low, _) if compare(value, low).is_lt() => return Ok(true),
            Bounds::Between(_, high) if compare(high, value).is_lt() => high,
            _ => value,
        };
        if compare(value, next).is_eq() {
            self.partitions[partition].next = stage.step_from(value)?;
        }
        if compare(next, end).is_ge() {
            return Ok(true);
        }
        let then = Some(Waiting::new(self.input.row().document(), self.input.metadata()));
        self.input.release();
        self.making = Some(Making { partition, next, end, with_end: false, then });
        Ok(false)
    }

    fn add_partition(
        &mut self,
        key: OwnedValue,
        fields: DocBuf,
        next: Value<'static>,
        cx: &Cx<'_>,
    ) -> Result<usize> {
        check_room(fields.as_raw(), &self.stage.field)?;
        self.bytes += 2 * fields.as_bytes().len() as u64 + size_of::<Partition>() as u64;
        self.bytes += 2 * ALLOCATION as u64;
        if self.bytes > cx.limits.memory_bytes as u64 {
            bail!(
                6007200,
                "$densify exceeded memory limit of {} bytes for its partitions",
                cx.limits.memory_bytes
            );
        }
        if self.bytes > self.held.bytes() {
            if self.held.bytes() == 0 {
                self.held = sheaf_meter::reserve(0)?;
            }
            self.held.set(self.bytes.next_multiple_of(64 << 10))?;
        }
        let place = self.partitions.len();
        self.partitions.push(Partition { fields, next });
        self.by_fields.insert(key, place);
        Ok(place)
    }

    /// The next document that is made, or the one behind them; false if there is neither.
    fn make(&mut self) -> Result<bool> {
        let Some(making) = &mut self.making else { return Ok(false) };
        let order = compare(making.next, making.end);
        if order.is_lt() || (making.with_end && order.is_eq()) {
            let partition = &mut self.partitions[making.partition];
            let value = making.next;
            let field = self.stage.field.parts();
            self.output = Output::Made(DocBuf::build(|out| {
                put_nested(partition.fields.as_raw(), field, value, out);
            }));
            making.next = self.stage.step_from(value)?;
            partition.next = making.next;
            self.made += 1;
            if self.made > MADE_MAX {
                bail!(
                    5897900,
                    "Generated {} documents in $densify, which is over the limit of {MADE_MAX}. Increase the \
                     'internalQueryMaxAllowedDensifyDocs' parameter to allow more generated documents",
                    self.made
                );
            }
            sheaf_meter::tick(4)?;
            return Ok(true);
        }
        let Some(Making { partition, next, then: Some(then), .. }) = self.making.take() else {
            return Ok(false);
        };
        let value = self.stage.value_of(then.document())?.expect("it had one when it came");
        if compare(value, next).is_eq() {
            self.partitions[partition].next = self.stage.step_from(value)?;
        }
        self.output = Output::Kept(then);
        Ok(true)
    }

    /// What is to be made behind the last document: of one partition after another.
    fn complete(&mut self, cx: &Cx<'_>) -> Result<bool> {
        let stage = self.stage.clone();
        let (end, with_end) = match (stage.bounds, self.extremes) {
            (Bounds::Between(_, high), _) => (high, false),
            (Bounds::Full, Some((_, most))) if !stage.partition_by.is_empty() => (most, true),
            _ => return Ok(false),
        };
        if self.completing.is_none()
            && self.partitions.is_empty()
            && let Bounds::Between(low, _) = stage.bounds
        {
            // Without documents the first value is made in any case.
            let key = OwnedValue::from(Value::Document(RawDoc::EMPTY));
            let partition = self.add_partition(key, DocBuf::new(), low, cx)?;
            self.completing = Some(1);
            let with_end = compare(low, end).is_eq();
            self.making = Some(Making { partition, next: low, end, with_end, then: None });
            return Ok(true);
        }
        let at = self.completing.unwrap_or(0);
        let Some(partition) = self.partitions.get(at) else { return Ok(false) };
        self.completing = Some(at + 1);
        let next = partition.next;
        self.making = Some(Making { partition: at, next, end, with_end, then: None });
        Ok(true)
    }
}

/// The partition's fields of a document.
fn shared_fields(document: RawDoc<'_>, paths: &[FieldPath], out: &mut DocWriter<'_, Vec<u8>>) {
    let mut fields = DocBuf::new();
    for path in paths {
        let value = nested(document, path);
        if !value.is_missing() {
            let more = DocBuf::build(|out| put_nested(fields.as_raw(), path.parts(), value, out));
            fields = more;
        }
    }
    out.append_all(fields.as_raw());
}

/// Writes a document's fields with this one set.
fn put_nested(document: RawDoc<'_>, path: &[Box<str>], value: Value<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    let Some((name, rest)) = path.split_first() else { return };
    let below = |inner: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>| match rest {
        [] => _ = out.append(name, value),
        rest => put_nested(inner, rest, value, &mut out.document(name)),
    };
    let mut is_set = false;
    for field in document.iter() {
        if field.key() == &**name {
            is_set = true;
            below(field.value().as_doc().unwrap_or(RawDoc::EMPTY), out);
        } else {
            out.append_element(field);
        }
    }
    if !is_set {
        below(RawDoc::EMPTY, out);
    }
}

/// Refuses fields of a partition in which the value cannot be set.
fn check_room(fields: RawDoc<'_>, path: &FieldPath) -> Result<()> {
    let mut document = fields;
    let parts = path.parts();
    for (at, name) in parts.iter().enumerate() {
        match document.get_or_missing(name) {
            Value::Array(_) => bail!(5733307, "$densify cannot generate fields nested inside arrays"),
            Value::Document(inner) => document = inner,
            Value::Missing => break,
            _ if at + 1 == parts.len() => break,
            _ => bail!(5733308, "$densify cannot overwrite non-object values with objects"),
        }
    }
    Ok(())
}

impl Operator for DensifyRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.make()? {
            return Ok(Step::Row);
        }
        if self.completing.is_some() {
            return Ok(if self.complete(cx)? { Step::More } else { Step::Eof });
        }
        Ok(match self.input.work(cx)? {
            Step::Row if self.take(cx)? => {
                self.output = Output::Input;
                Step::Row
            }
            Step::Eof => {
                if self.complete(cx)? {
                    Step::More
                } else {
                    Step::Eof
                }
            }
            _ => Step::More,
        })
    }

    fn row(&self) -> Row<'_> {
        match &self.output {
            Output::Input => self.input.row(),
            Output::Made(document) => Row::of(document.as_raw()),
            Output::Kept(kept) => Row::of(kept.document()),
        }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        match &self.output {
            Output::Input => self.input.metadata(),
            Output::Made(_) => None,
            Output::Kept(kept) => kept.metadata(),
        }
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}
