"""`raymine report`: one self-contained HTML file about one run, or about several beside each other."""

from .page import Report as Report
from .page import write_report as write_report
