//! `$group` past its memory.
//!
//! When the table of groups has filled the memory, it stays as it is. From then on, a document of a group that is in
//! the table and takes no more room is still counted there; what is left of any other document is set aside under
//! the hash of its group. In the end the rows come back group by group, in the order of the documents, and go on
//! where the table had stopped. So every group sees the same values in the same order as it would in memory.

use sheaf_bson::{Bump, Value};
use sheaf_collation::compare_by;
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_query::sort::Sorted;

use super::{Group, LARGE_BYTES, Running, Table};
use crate::stages::set_aside::{AsideRow, SetAside};
use sheaf_rows::{Cx, Figures};

/// Documents being set aside.
pub(super) struct Spill(SetAside);

impl Spill {
    pub(super) fn new(cx: &Cx<'_>) -> Spill {
        Spill(SetAside::new(cx))
    }

    /// Takes in one document.
    pub(super) fn take_in<'a>(
        &mut self,
        stage: &'a Group,
        id: Value<'a>,
        values: impl Iterator<Item = Result<Value<'a>>>,
        table: &mut Table,
    ) -> Result<()> {
        let hash = table.hash(id);
        if !stage.grows
            && let Some(group) = table.get(hash, id)
        {
            for (state, value) in group.states.iter_mut().zip(values) {
                state.add(value?)?;
            }
            return Ok(());
        }
        self.0.add(&hash.to_be_bytes(), id, values)
    }

    /// The groups of all that was taken in.
    pub(super) fn finish(self, table: Table, figures: &mut Figures) -> Result<Merged> {
        let mut rows = self.0.finish(figures)?;
        let next = AsideRow::next(&mut rows)?;
        Ok(Merged { rows, next, table, ready: Vec::new(), swept: 0, held: sheaf_meter::reserve(0)? })
    }
}

/// Groups coming out: those with rows in the order of their hashes, then those that are only in the table.
pub(super) struct Merged {
    rows: Sorted,
    next: Option<AsideRow>,
    table: Table,
    /// Finished groups of one hash.
    ready: Vec<Running>,
    /// How far the table has been given.
    swept: usize,
    /// The account of `ready`, where that is large.
    held: Held,
}

impl Merged {
    pub(super) fn next(&mut self, stage: &Group, cx: &mut Cx<'_>) -> Result<Option<Running>> {
        if self.ready.is_empty() && self.next.is_some() {
            self.gather(stage, cx)?;
        }
        if let Some(group) = self.ready.pop() {
            return Ok(Some(group));
        }
        while let Some(group) = self.table.groups.get_mut(self.swept) {
            self.swept += 1;
            if let Some(group) = group.take() {
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    /// Adds up all rows with the next hash.
    fn gather(&mut self, stage: &Group, cx: &mut Cx<'_>) -> Result<()> {
        let first = self.next.as_ref().expect("rows are added up where there is one");
        let hash = self.table.hash(first.filed_under());
        self.ready = self.table.take(hash);
        self.held.set(0)?;
        while let Some(row) = self.next.take_if(|row| self.table.hash(row.filed_under()) == hash) {
            if row.size() > LARGE_BYTES {
                self.held.grow(row.size() as u64)?;
            }
            let id = row.filed_under();
            let known = {
                let by = stage.collator.as_ref();
                self.ready.iter().position(|group| compare_by(by, group.id.as_value(), id).is_eq())
            };
            let place = match known {
                Some(place) => place,
                None => {
                    let arena = Bump::new();
                    self.ready.push(Running::start(stage, id, &cx.env(&arena))?);
                    self.ready.len() - 1
                }
            };
            for (state, value) in self.ready[place].states.iter_mut().zip(row.values()) {
                state.add(value)?;
            }
            if stage.grows || self.held.bytes() > 0 || self.ready.len() > 1 {
                self.held.set(self.ready.iter().map(|group| group.memory_bytes() as u64).sum())?;
            }
            self.next = AsideRow::next(&mut self.rows)?;
            cx.check_interrupt()?;
        }
        Ok(())
    }
}
